package checkpoint

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// This file reads a state file without bbolt, which trusts its pages: a size or a page number that makes no sense is a panic there,
// partly in goroutines of its own, or a loop without an end. Here each page is read once, and nothing beyond its end. An error of
// the disk is an error, not a fault of mapped memory.

// The layout of bbolt's pages, in the byte order of the machine. A page has a header, a table of elements, and then their keys and
// values, one directly behind the other.
const (
	headerSize  = 16 // id (8 bytes), flags (2), count (2), overflow (4): so many pages belong to it beside the first
	elementSize = 16 // of a branch: position (4), length of the key (4), page (8); of a leaf: flags, position, two lengths (4 each)
	bucketSize  = 16 // in the value of a bucket: its first page (8), or 0 if that follows in the value; a counter (8)

	isBranch = 0x01
	isLeaf   = 0x02
	isBucket = 0x01 // flags of an element
	// maxDepth is more levels than a file of any size has.
	maxDepth = 64
	// maxValue bounds the memory that a damaged length may allocate: no entry of a log is as large.
	maxValue = 2 * maxObject
)

// pageFile is a state file that is not written meanwhile.
type pageFile struct {
	file     io.ReaderAt
	pageSize int64
	count    uint64 // of pages
	fresh    bool   // nothing was written yet
	used     []byte // what each page is used for
	in       *bufio.Reader
	value    []byte
	// damaged is called with each thing that cannot be read. Reading goes on behind it if damaged returns nil.
	damaged func(error) error
}

// storedBucket is where the entries of a bucket are: in a tree of pages, or in the value of the bucket.
type storedBucket struct {
	name   string
	root   uint64
	inline []byte
}

// readPages calls read with the file and its root bucket, while no process writes to the file. An error in opening wraps
// errUnusable if the file is certainly damaged.
func readPages(path string, damaged func(error) error, read func(f *pageFile, root storedBucket) error) error {
	var db *bolt.DB
	err := guarded(path, func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
		return err
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%s: %w", path, ErrLocked)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum):
		if readErr := readMeta(path); readErr != nil {
			return fmt.Errorf("open %s: %w; %s", path, errors.Join(readErr, err), leftAlone)
		}
		return fmt.Errorf("%w: %w", errUnusable, err)
	case errors.Is(err, errUnusable), errors.Is(err, errFault):
		return err
	case err != nil:
		return fmt.Errorf("open %s: %w; %s", path, err, leftAlone)
	}
	defer db.Close()
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open %s: %w; %s", path, err, leftAlone)
	}
	defer file.Close()
	return db.View(func(tx *bolt.Tx) error {
		f := &pageFile{
			file: file, pageSize: int64(db.Info().PageSize), fresh: tx.ID() <= 1, in: bufio.NewReaderSize(nil, 64<<10), damaged: damaged,
		}
		f.count = uint64(tx.Size() / f.pageSize)
		f.used = make([]byte, f.count)
		// Only now: the process that had the lock may have written until it released it.
		if info, err := file.Stat(); err == nil && info.Size() < tx.Size() {
			if err := damaged(fmt.Errorf("%w: cut short: %d bytes of %d", errUnusable, info.Size(), tx.Size())); err != nil {
				return err
			}
		}
		return read(f, storedBucket{root: uint64(tx.Cursor().Bucket().Root())})
	})
}

// errFault marks a fault of mapped memory: an error of the disk, or of the volume behind it, that may pass.
var errFault = errors.New("the disk returned an error")

// guarded returns a panic of bbolt as an error: a fault of mapped memory as errFault, any other as errUnusable.
func guarded(path string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if _, fault := r.(interface{ Addr() uintptr }); fault {
			err = fmt.Errorf("read %s: %w: %v; %s", path, errFault, r, leftAlone)
		} else if r != nil {
			err = fmt.Errorf("%w: damaged: %v", errUnusable, r)
		}
	}()
	return f()
}

// read calls take with each entry of a bucket, in the order of the keys, and returns the buckets in it. Without values, take gets
// keys only. Key and value may be used until take returns.
func (f *pageFile) read(b storedBucket, values bool, take func(key, value []byte) error) (inside []storedBucket, err error) {
	w := &walk{pageFile: f, values: values, take: take}
	if b.root == 0 {
		err = w.inlinePage(b.inline)
	} else {
		err = w.page(b.root, nil, nil, 0)
	}
	return w.inside, err
}

// walk is one reading of a bucket.
type walk struct {
	*pageFile
	values bool
	take   func(key, value []byte) error
	inside []storedBucket
}

func (f *pageFile) damage(format string, values ...any) error {
	return f.damaged(fmt.Errorf("%w: damaged: %s", errUnusable, fmt.Sprintf(format, values...)))
}

// failed is for an error of the disk. The end of the file is none: the file is cut short.
func (f *pageFile) failed(id uint64, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return f.damage("page %d ends early", id)
	}
	return f.damaged(fmt.Errorf("read page %d of the state file: %w; %s", id, err, leftAlone))
}

// What pages are used for.
const (
	first = 1 + iota // with a header
	continuation
)

// claim takes pages that another goes on in, if they are free.
func (f *pageFile) claim(from, count uint64) bool {
	if count > f.count-from {
		return false
	}
	pages := f.used[from : from+count]
	if slices.ContainsFunc(pages, func(use byte) bool { return use != 0 }) {
		return false
	}
	for n := range pages {
		pages[n] = continuation
	}
	return true
}

// header is the header of a page.
type header struct {
	id       uint64
	flags    uint16
	count    int
	overflow uint64
}

func readHeader(page io.ReaderAt) (h header, err error) {
	b := make([]byte, headerSize)
	if _, err := page.ReadAt(b, 0); err != nil {
		return h, err
	}
	order := binary.NativeEndian
	return header{order.Uint64(b), order.Uint16(b[8:]), int(order.Uint16(b[10:])), uint64(order.Uint32(b[12:]))}, nil
}

// page reads a page and those below it. Its keys must be from a key on, and before another; nil is no bound.
func (w *walk) page(id uint64, from, to []byte, depth int) error {
	if depth > maxDepth || id < 2 || id >= w.count || w.used[id] == first {
		return w.damage("page %d does not exist, or is used twice", id)
	}
	if w.used[id] == continuation {
		if err := w.damage("page %d is used twice", id); err != nil {
			return err
		}
	}
	w.used[id] = first
	at := int64(id) * w.pageSize
	h, err := readHeader(io.NewSectionReader(w.file, at, headerSize))
	if err != nil {
		return w.failed(id, err)
	}
	if h.flags != isBranch && h.flags != isLeaf {
		return w.damage("page %d has the flags %x", id, h.flags)
	}
	if h.id != id {
		if err := w.damage("page %d says that it is page %d", id, h.id); err != nil {
			return err
		}
	}
	if !w.claim(id+1, h.overflow) {
		if err := w.damage("page %d goes on for %d pages that do not exist, or are used twice", id, h.overflow); err != nil {
			return err
		}
		h.overflow = min(h.overflow, w.count-1-id)
	}
	return w.elements(io.NewSectionReader(w.file, at, int64(h.overflow+1)*w.pageSize), id, h, from, to, depth)
}

// inlinePage reads the page in a bucket's value. It holds no buckets.
func (w *walk) inlinePage(page []byte) error {
	in := bytes.NewReader(page)
	h, err := readHeader(in)
	if err != nil || h.flags != isLeaf || h.overflow != 0 {
		return w.damage("a bucket has no page")
	}
	return w.elements(io.NewSectionReader(in, 0, int64(len(page))), 0, h, nil, nil, 0)
}

// child is a page below a branch.
type child struct {
	first []byte
	page  uint64
}

// elements reads the elements of a page, and the pages below it.
func (w *walk) elements(page *io.SectionReader, id uint64, h header, from, to []byte, depth int) error {
	table := make([]byte, elementSize*h.count)
	end := int64(headerSize + len(table)) // of what was read last
	if _, err := page.ReadAt(table, headerSize); err != nil && h.count > 0 {
		return w.failed(id, err)
	}
	var children []child
	var previous []byte
	w.in.Reset(io.NewSectionReader(page, end, page.Size()-end))
	for n := range h.count {
		e := elementAt(table, n, h.flags)
		limit := page.Size()
		if n+1 < h.count {
			limit = min(limit, elementAt(table, n+1, h.flags).start)
		}
		if e.start != end || e.key == 0 || e.key > bolt.MaxKeySize || e.value > maxValue || e.end() > limit || e.flags&^isBucket != 0 {
			if err := w.damage("element %d of page %d", n, id); err != nil {
				return err
			}
			if e.start < int64(headerSize+len(table)) || e.key > bolt.MaxKeySize || e.value > maxValue || e.end() > limit {
				continue
			}
			w.in.Reset(io.NewSectionReader(page, e.start, page.Size()-e.start))
		}
		end = e.end()
		key, value, err := w.element(&e)
		if err != nil {
			return w.failed(id, err)
		}
		if bytes.Compare(key, from) < 0 || to != nil && bytes.Compare(key, to) >= 0 || n > 0 && bytes.Compare(key, previous) <= 0 {
			if err := w.damage("the key of element %d of page %d is out of order", n, id); err != nil {
				return err
			}
		}
		previous = append(previous[:0], key...)
		switch {
		case h.flags == isBranch:
			children = append(children, child{slices.Clone(key), e.page})
		case e.flags == isBucket:
			if err := w.bucket(string(key), value, id); err != nil {
				return err
			}
		default:
			if err := w.take(key, value); err != nil {
				return err
			}
		}
	}
	// bbolt puts an empty bucket into the value, and takes no page more than it needs.
	spare := w.pageSize
	if id == 0 {
		spare = 1
	}
	if id != 0 && h.count == 0 && !w.fresh || end > page.Size() || end <= page.Size()-spare {
		if err := w.damage("page %d ends at %d of %d", id, end, page.Size()); err != nil {
			return err
		}
	}
	for n, c := range children {
		before := to
		if n+1 < len(children) {
			before = children[n+1].first
		}
		if err := w.page(c.page, c.first, before, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// bucket adds a bucket that a leaf holds.
func (w *walk) bucket(name string, value []byte, id uint64) error {
	if len(value) < bucketSize || id == 0 {
		return w.damage("a bucket in page %d", id)
	}
	b := storedBucket{name: name, root: binary.NativeEndian.Uint64(value)}
	if b.root == 0 {
		b.inline = slices.Clone(value[bucketSize:])
	}
	w.inside = append(w.inside, b)
	return nil
}

// element is an entry in the table of a page.
type element struct {
	flags             uint32
	start, key, value int64 // the position in the page, and the lengths
	page              uint64
}

func elementAt(table []byte, n int, flags uint16) element {
	order, b := binary.NativeEndian, table[elementSize*n:]
	at := int64(headerSize + elementSize*n) // positions are from the element on
	if flags == isBranch {
		return element{start: at + int64(order.Uint32(b)), key: int64(order.Uint32(b[4:])), page: order.Uint64(b[8:])}
	}
	return element{
		flags: order.Uint32(b), start: at + int64(order.Uint32(b[4:])), key: int64(order.Uint32(b[8:])), value: int64(order.Uint32(b[12:])),
	}
}

func (e *element) end() int64 { return e.start + e.key + e.value }

// element reads a key, and its value if that is needed.
func (w *walk) element(e *element) (key, value []byte, err error) {
	needed := e.key
	if w.values || e.flags == isBucket {
		needed += e.value
	}
	w.value = slices.Grow(w.value[:0], int(needed))[:needed]
	if _, err = io.ReadFull(w.in, w.value); err == nil {
		_, err = w.in.Discard(int(e.key + e.value - needed))
	}
	return w.value[:e.key:e.key], w.value[e.key:], err
}
