package app

import (
	"cmp"
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/pipeline"
)

// deadLetters returns where pipelines without a sink for their dead letters write them: to the state directory, if there is
// one.
func (s *state) deadLetters() pipeline.DeadLetter {
	if s.dead == nil {
		return pipeline.LogOnly{}
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

func registerDeadLetters(registry prometheus.Registerer, dead *checkpoint.DeadLetters) {
	gauge := func(name, help string, get func(checkpoint.DeadLetterStatus) float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubeferry_" + name, Help: help},
			func() float64 { return get(dead.Status()) }))
	}
	gauge("dead_letters", "Dead letters in the state directory.", func(s checkpoint.DeadLetterStatus) float64 { return float64(s.Entries) })
	gauge("dead_letter_bytes", "Size of the dead letters in the state directory. deadLetters.maxBytes limits it.",
		func(s checkpoint.DeadLetterStatus) float64 { return float64(s.Bytes) })
	gauge("dead_letters_full", "1 while a record waits because there is no room for its dead letter.",
		func(s checkpoint.DeadLetterStatus) float64 {
			if s.Full {
				return 1
			}
			return 0
		})
}
