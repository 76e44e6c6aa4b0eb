package freeport_test

import (
	"net"
	"testing"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
)

func TestPick(t *testing.T) {
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", freeport.Addr(port))
	if err != nil {
		t.Fatalf("listen on the picked port: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if sign, err := net.ListenPacket("udp", freeport.Addr(port)); err == nil {
		t.Error("another process may pick the port too")
		_ = sign.Close()
	}
}
