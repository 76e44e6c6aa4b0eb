package app

import (
	"cmp"
	"context"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/pipeline"
)

// deadLetters returns where pipelines without a sink for their dead letters write them: to the state directory, if there is
// one.
func (s *state) deadLetters() pipeline.DeadLetter {
	if s.dead == nil {
		return pipeline.NoLetters{}
	}
	return stateLetters{s.dead}
}

type stateLetters struct{ dead *checkpoint.DeadLetters }

func (l stateLetters) Write(ctx context.Context, letters []pipeline.Letter) (written int, err error) {
	var encoded [][]byte
	for _, letter := range letters {
		text, encodeErr := letter.Encode()
		if err = encodeErr; err != nil {
			break
		}
		encoded = append(encoded, text)
	}
	written, writeErr := l.dead.Write(ctx, encoded...)
	return written, cmp.Or(writeErr, err)
}
