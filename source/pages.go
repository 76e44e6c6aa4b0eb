package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/jsonscan"
)

// pageSize is client-go's default: a page of large Pods is about 3 MB.
const pageSize = 500

// pageBytes is the most that is read of a page. One of large objects, as Helm's Secrets are, would be a GiB in memory.
const pageBytes = 8 << 20

// errNoVersion is returned for a resource whose lists have no resource version.
var errNoVersion = errors.New("its lists have no resource version, so a watch cannot begin behind them: changes in between would be lost. The resource is not watched")

// errUnordered is returned for a resource whose lists have lower resource versions than its objects, such as a constant. Each would pass for the
// list of an API server whose history has gone back.
var errUnordered = errors.New("its lists have lower resource versions than its objects, so that it cannot be known what a watch has missed, and the resource is not watched")

// errNoIdentity is returned for an object whose changes could not be told apart: their ids would be those of others.
var errNoIdentity = errors.New("an object has no uid or no resource version, so its changes cannot be told apart. The resource is not watched")

// identified returns an error for an object that has no uid or no resource version, as those of some extension APIs have not.
func identified(object *delta.Object) error {
	if object.UID() != "" && object.ResourceVersion() != "" {
		return nil
	}
	return fmt.Errorf("%w: namespace %q, name %q", errNoIdentity, object.Namespace(), object.Name())
}

// isUnfit reports whether an error means that the resource is none that can be watched without a loss.
func isUnfit(err error) bool {
	return errors.Is(err, errNoVersion) || errors.Is(err, errUnordered) || errors.Is(err, errNoIdentity)
}

// page is one page of a list.
type page struct {
	resourceVersion string // of the whole list
	next            string // continue token, empty on the last page
	objects         []*delta.Object
}

// pages reads a list page by page, each consistent with the first.
type pages struct {
	collection *collection
	next       metav1.ListOptions // for the next page
	text       bytes.Buffer       // of a page: its objects are copied out of it, and the next page uses it again
}

func (c *collection) pages() *pages {
	return &pages{collection: c, next: metav1.ListOptions{Limit: pageSize}}
}

// list reads one page.
func (c *collection) list(ctx context.Context, options metav1.ListOptions) (page, error) {
	return (&pages{collection: c, next: options}).read(ctx)
}

// read reads the next page; behind the last one, the first of a new list. One that is too large is read again with fewer objects. After an
// error, the same page is read by the next call.
func (p *pages) read(ctx context.Context) (page, error) {
	for {
		most := int64(pageBytes)
		if p.next.Limit == 1 {
			most = math.MaxInt64 - 1
		}
		p.text.Reset()
		body, err := p.collection.client.get(ctx, &p.text, p.collection.request(p.next), most)
		if errors.Is(err, errTooLarge) {
			p.next.Limit = max(p.next.Limit/4, 1)
			continue
		}
		if err != nil {
			return page{}, err
		}
		read, err := parsePage(body, p.collection.client.keepManagedFields)
		if isUnfit(err) {
			return page{}, fmt.Errorf("%s: %w", delta.ResourceName(p.collection.resource), err)
		}
		if err != nil {
			return page{}, fmt.Errorf("decode list: %w", err)
		}
		if p.next.Continue = read.next; len(body) < pageBytes/2 {
			p.next.Limit = min(2*p.next.Limit, pageSize)
		}
		return read, nil
	}
}

// parsePage copies the objects out of a list. Items of built-in resources come without apiVersion and kind; they get those of
// the list, whose kind ends in "List". encoding/json does not read a list whose objects are nested as deeply as the API server
// allows: one such object would keep all watches of its resource from being opened.
func parsePage(body []byte, keepManagedFields bool) (page, error) {
	var list struct {
		metav1.TypeMeta
		Metadata metav1.ListMeta
	}
	if bytes.IndexByte(bytes.TrimRight(body, "\n"), '\n') >= 0 { // records hold no line breaks
		var compact bytes.Buffer
		if err := json.Compact(&compact, body); err != nil {
			return page{}, err
		}
		body = compact.Bytes()
	}
	body = delta.ValidUTF8(body)
	var items []delta.Item
	s := jsonscan.NewScanner(body)
	read := func(into any) error {
		value, err := s.Value()
		if err != nil {
			return err
		}
		return json.Unmarshal(value, into)
	}
	err := s.Object(func(key []byte) error {
		switch string(key) {
		case "apiVersion":
			return read(&list.APIVersion)
		case "kind":
			return read(&list.Kind)
		case "metadata":
			return read(&list.Metadata)
		case "items":
			if s.Peek() != '[' { // null
				return s.Skip()
			}
			return s.Array(func() error {
				item, err := delta.ScanItem(s, body)
				items = append(items, item)
				return err
			})
		default:
			return s.Skip()
		}
	})
	if err == nil {
		err = s.End()
	}
	if err != nil {
		return page{}, err
	}
	if list.Metadata.ResourceVersion == "" {
		return page{}, errNoVersion
	}
	p := page{resourceVersion: list.Metadata.ResourceVersion, next: list.Metadata.Continue}
	listed, textErr := strconv.ParseUint(p.resourceVersion, 10, 64)
	for _, item := range items {
		object := item.Object(list.APIVersion, strings.TrimSuffix(list.Kind, "List"), keepManagedFields)
		err := identified(object)
		if err == nil && versionNumber(object.ResourceVersion()) > listed && textErr == nil {
			err = fmt.Errorf("%w: that of %q is %s, the list's %s", errUnordered, object.Name(), object.ResourceVersion(), p.resourceVersion)
		}
		if err != nil {
			return page{}, err
		}
		p.objects = append(p.objects, object)
	}
	return p, nil
}

// newest returns the smallest possible list, for its resource version. Without selectors: to find an object that fits, the API server may
// read them all from etcd. The name stays, as rights may be for that only; where they depend on the selectors, these are sent after all.
func (c *collection) newest(ctx context.Context) (page, error) {
	all := *c
	all.labelSelector, all.fieldSelector, all.metadataOnly = "", "", true
	if name := selectedName(c.fieldSelector); name != "" {
		all.fieldSelector = "metadata.name=" + name
	}
	smallest := metav1.ListOptions{Limit: 1}
	p, err := all.list(ctx, smallest)
	refused := apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)
	if refused && (all.labelSelector != c.labelSelector || all.fieldSelector != c.fieldSelector) {
		return c.list(ctx, smallest)
	}
	return p, err
}
