package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// pageSize is client-go's default: a page of large Pods is about 3 MB.
const pageSize = 500

// pageBytes is the most that is read of a page. One of large objects, as Helm's Secrets are, would be a GiB in memory.
const pageBytes = 8 << 20

// page is one page of a list.
type page struct {
	resourceVersion string // of the whole list
	next            string // continue token, empty on the last page
	objects         []*delta.Object
	limit           int // that the next page may be asked for with
}

// listOptions say which page is read.
type listOptions struct {
	limit int
	token string // of the page before
	// exact asks for the state at this resource version; empty for the present one, by a quorum read.
	exact string
}

// list reads one page of the collection, consistent with the first. One that is too large is asked for again with fewer
// objects.
func (c *collection) list(ctx context.Context, options listOptions) (page, error) {
	for {
		p, err := c.listOnce(ctx, options)
		if !errors.Is(err, errTooLarge) {
			return p, err
		}
		options.limit = max(options.limit/4, 1)
	}
}

func (c *collection) listOnce(ctx context.Context, options listOptions) (page, error) {
	request := c.request().Param("limit", strconv.Itoa(options.limit))
	if options.exact != "" && options.token == "" {
		request = request.Param("resourceVersion", options.exact).Param("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	}
	if options.token != "" {
		request = request.Param("continue", options.token)
	}
	most := int64(pageBytes)
	if options.limit == 1 {
		most = math.MaxInt64 - 1
	}
	body, err := c.client.getAtMost(ctx, request, most)
	if err != nil {
		return page{}, err
	}
	p, err := parsePage(body)
	if p.limit = options.limit; len(body) < pageBytes/2 {
		p.limit = min(2*p.limit, pageSize)
	}
	return p, err
}

// parsePage cuts a list into its objects without decoding them. Items of built-in resources come without
// apiVersion and kind; they get those of the list, whose kind ends in "List".
func parsePage(body []byte) (page, error) {
	var p page
	var head struct{ apiVersion, kind string }
	var items [][]byte
	scanner := delta.NewScanner(body)
	err := scanner.Object(func(key []byte) (err error) {
		switch string(key) {
		case "apiVersion":
			head.apiVersion, err = scanner.String()
		case "kind":
			head.kind, err = scanner.String()
		case "metadata":
			err = scanner.Object(func(key []byte) (err error) {
				switch string(key) {
				case "resourceVersion":
					p.resourceVersion, err = scanner.String()
				case "continue":
					p.next, err = scanner.String()
				default:
					err = scanner.Skip()
				}
				return err
			})
		case "items":
			if scanner.Null() { // as Go writes a list without items that nobody made
				return nil
			}
			err = scanner.Array(func() error {
				item, err := scanner.Value()
				items = append(items, item)
				return err
			})
		default:
			err = scanner.Skip()
		}
		return err
	})
	if err == nil {
		err = scanner.End()
	}
	if err == nil && p.resourceVersion == "" {
		err = fmt.Errorf("a %s without a resource version", head.kind)
	}
	if err != nil {
		return page{}, fmt.Errorf("decode list: %w", err)
	}
	for _, item := range items {
		object, err := newItem(item, head.apiVersion, head.kind)
		if err != nil {
			return page{}, fmt.Errorf("decode list: %w", err)
		}
		p.objects = append(p.objects, object)
	}
	return p, nil
}

func newItem(item []byte, apiVersion, listKind string) (*delta.Object, error) {
	if bytes.IndexByte(item, '\n') >= 0 { // records hold no line breaks, and a string in JSON cannot
		var compact bytes.Buffer
		if err := json.Compact(&compact, item); err != nil {
			return nil, err
		}
		item = compact.Bytes()
	}
	object, err := delta.NewObject(item)
	if err != nil || object.Kind() != "" {
		if err == nil { // let go of the page
			object, err = delta.NewObject(append([]byte(nil), item...))
		}
		return object, err
	}
	kind := listKind
	if n := len(kind) - len("List"); n > 0 && kind[n:] == "List" {
		kind = kind[:n]
	}
	raw := make([]byte, 0, len(item)+len(apiVersion)+len(kind)+32)
	raw = fmt.Appendf(raw, `{"apiVersion":%q,"kind":%q,`, apiVersion, kind)
	return delta.NewObject(append(raw, item[1:]...))
}

// watchAfterPages reads the state page by page, at the position if there is one, and watches on from its resource version.
func (l *follower) watchAfterPages(ctx context.Context) (*frames, error) {
	first, err := l.collection.list(ctx, listOptions{limit: pageSize, exact: l.position})
	if err != nil {
		return nil, err
	}
	if l.position != "" && first.resourceVersion != l.position {
		// The server does not know resourceVersionMatch. What changed since would pass for what was there before.
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("asked for the state at %s, got that at %s", l.position, first.resourceVersion))
	}
	l.health.opened(false)
	if err := l.readPages(ctx, first); err != nil {
		return nil, err
	}
	return l.watch(ctx)
}

// readPages passes the state on between begin and end. An expired continue token, like any other error, is the end of it:
// the next attempt begins anew.
func (l *follower) readPages(ctx context.Context, p page) error {
	start := &marker{kind: begin, exact: l.position != ""}
	if l.refused != nil {
		l.refused.to = p.resourceVersion
		refused := *l.refused
		start.refused = &refused
	}
	if err := l.process(ctx, event{marker: start}); err != nil {
		return err
	}
	l.begun = true
	position := p.resourceVersion
	for {
		for _, object := range p.objects {
			if err := l.process(ctx, event{kind: watch.Added, object: object}); err != nil {
				return err
			}
		}
		if p.next == "" {
			break
		}
		next, err := l.collection.list(ctx, listOptions{limit: p.limit, token: p.next})
		if err != nil {
			return err
		}
		p = next
	}
	if err := l.process(ctx, event{marker: &marker{kind: end, resourceVersion: position}}); err != nil {
		return err
	}
	l.position, l.refused, l.fill, l.begun = position, nil, false, false
	return nil
}
