package replication

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// protocol is the version of the frames. A leader answers a standby of the previous version, for one release.
const protocol = 1

// The types of frames: a byte, the length of what follows in four, and that.
const (
	frameHello  = 'H' // first, both ways: JSON
	frameRange  = 'R' // changes that make a part of the copy
	frameChange = 'C' // changes of a commit
	frameCommit = 'E' // the end of a commit: its number
	frameWhole  = 'W' // the end of the copy: the number of the commit that it equals
	frameAlive  = 'A' // nothing happened: the number of the last commit
	frameAck    = 'K' // from a standby: the number of the last commit that is on its disk
)

const (
	// maxFrame bounds a frame: a change holds one entry of a log at least, which takes 64 MiB at most.
	maxFrame = 80 << 20
	// maxHello bounds the first frame.
	maxHello = 16 << 10
	// aliveInterval is how often a leader that has nothing to send does so; a connection without a frame for silence is broken.
	aliveInterval = 500 * time.Millisecond
	silence       = 5 * time.Second
)

// hello is what a standby sends first.
type hello struct {
	Protocols []int `json:"protocols"`
	// Token is of the standby's ServiceAccount, for the audience of the leader's certificate.
	Token string `json:"token"`
}

// helloAnswer is what the leader answers.
type helloAnswer struct {
	Protocol int `json:"protocol,omitempty"`
	// Token is of the leader's ServiceAccount, for the audience of its own certificate.
	Token   string `json:"token,omitempty"`
	Refused string `json:"refused,omitempty"`
}

var errFrame = errors.New("a frame that makes no sense")

func writeFrame(w io.Writer, kind byte, content []byte) error {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(content))) //nolint:gosec // frames are bounded
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

func readFrame(r io.Reader, most int) (kind byte, content []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if uint64(size) > uint64(most) {
		return 0, nil, fmt.Errorf("%w: %d bytes", errFrame, size)
	}
	content = make([]byte, size)
	_, err = io.ReadFull(r, content)
	return head[0], content, err
}

func writeHello(w io.Writer, h any) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return writeFrame(w, frameHello, text)
}

func readHello(r io.Reader, h any) error {
	kind, text, err := readFrame(r, maxHello)
	if err != nil {
		return err
	}
	if kind != frameHello {
		return errFrame
	}
	if json.Unmarshal(text, h) != nil {
		return errFrame // the other error may hold what an unauthenticated peer has sent
	}
	return nil
}

// progress is the content of the ends of a commit and of the copy, of a sign of life, and of an acknowledgment.
func progress(commit uint64) []byte { return binary.BigEndian.AppendUint64(nil, commit) }

func readProgress(content []byte) (commit uint64, err error) {
	if len(content) != 8 {
		return 0, errFrame
	}
	return binary.BigEndian.Uint64(content), nil
}
