package enrich

import (
	"errors"
	"io"
	"net/http"

	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// pageBytes is the most that is read of a page. Labels have no bound of their own, and take ten times as much once they are decoded:
// a page of a hundred objects that have nothing else would take more than a GiB.
const pageBytes = 4 << 20

var errTooLarge = errors.New("the page is too large")

// NewClient makes the client of a [Cache]: its lists fail with an error if a page of several objects is larger than pageBytes.
func NewClient(config *rest.Config) (metadata.Interface, error) {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundedPages{next} })
	return metadata.NewForConfig(config)
}

// boundedPages bounds the bodies of answers to lists of several objects.
type boundedPages struct{ next http.RoundTripper }

func (b boundedPages) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	if limit := request.URL.Query().Get("limit"); err == nil && limit != "" && limit != "1" {
		response.Body = &boundedBody{response.Body, pageBytes}
	}
	return response, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.left -= n; b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}
