package source

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// An address that takes no connection is left soon: the next dial may reach another API server.
func TestAddressDoesNotAnswer(t *testing.T) {
	t.Parallel()
	listener, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(listener)
	if err := syscall.Bind(listener, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(listener, 0); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(listener)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
	only, err := net.Dial("tcp", address) // nothing accepts it, and there is no room for another
	if err != nil {
		t.Fatal(err)
	}
	defer only.Close()
	client, err := NewClient(&rest.Config{Host: "http://" + address}, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := client.ClusterUID(ctx); err == nil || !strings.Contains(err.Error(), "dial") || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
}
