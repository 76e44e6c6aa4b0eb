package source

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/delta"
)

// pageSize is client-go's default: a page of large Pods is about 3 MB.
const pageSize = 500

// page is one page of a list.
type page struct {
	resourceVersion string // of the whole list
	next            string // continue token, empty on the last page
	objects         []*delta.Object
}

// listOptions say which page is read.
type listOptions struct {
	limit int
	token string // of the page before
	// exact asks for the state at this resource version; empty for the present one, by a quorum read.
	exact string
}

// list reads one page of the collection, consistent with the first.
func (c *collection) list(ctx context.Context, options listOptions) (page, error) {
	request := c.client.rest.Get().AbsPath(c.path()).Param("limit", strconv.Itoa(options.limit))
	if options.exact != "" && options.token == "" {
		request = request.Param("resourceVersion", options.exact).Param("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	}
	for name, value := range map[string]string{
		"continue": options.token, "labelSelector": c.labelSelector, "fieldSelector": c.fieldSelector,
	} {
		if value != "" {
			request = request.Param(name, value)
		}
	}
	body, err := c.client.get(ctx, request)
	if err != nil {
		return page{}, err
	}
	return parsePage(body)
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

// watchAfterPages reads the state page by page, at the position if there is one, and watches on from its resource
// version, all in one stream. The first page is read at once, so that an error reaches the Reflector as such.
func (l *listerWatcher) watchAfterPages(ctx context.Context, timeout *int64) (watch.Interface, error) {
	first, err := l.collection.list(ctx, listOptions{limit: pageSize, exact: l.position})
	if err != nil {
		return nil, err
	}
	l.health.opened(false)
	return newStream(ctx, func(ctx context.Context, send func(watch.Event) bool) {
		if !l.sendPages(ctx, first, send) {
			return
		}
		w, err := l.collection.watch(ctx, metav1.ListOptions{
			ResourceVersion: l.position, AllowWatchBookmarks: true, TimeoutSeconds: timeout,
		})
		if err != nil {
			if ctx.Err() == nil {
				l.health.failed(err)
				send(errorEvent(err))
			}
			return
		}
		l.forward(ctx, w, send)
	}), nil
}

// sendPages sends the state between begin and end, and reports whether it is complete. An expired continue token,
// like any other error, ends the stream: the next watch begins anew.
func (l *listerWatcher) sendPages(ctx context.Context, p page, send func(watch.Event) bool) bool {
	start := &note{kind: begin, exact: l.position != ""}
	if l.refused != nil {
		l.refused.to = p.resourceVersion
		refused := *l.refused
		start.refused = &refused
	}
	if !send(watch.Event{Type: watch.Modified, Object: start}) {
		return false
	}
	l.begun = true
	position := p.resourceVersion
	for {
		for _, object := range p.objects {
			if !send(watch.Event{Type: watch.Added, Object: object}) {
				return false
			}
		}
		if p.next == "" {
			break
		}
		next, err := l.collection.list(ctx, listOptions{limit: pageSize, token: p.next})
		if err != nil {
			if ctx.Err() == nil {
				l.health.failed(err)
				send(errorEvent(err))
			}
			return false
		}
		p = next
	}
	if !send(watch.Event{Type: watch.Modified, Object: &note{kind: end, resourceVersion: position}}) {
		return false
	}
	l.position, l.refused, l.fill, l.begun = position, nil, false, false
	l.unclean = l.unclean && start.exact // what happened since is not seen yet
	return true
}
