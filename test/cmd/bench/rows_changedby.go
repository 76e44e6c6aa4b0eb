package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// unattributed is a kubeferry that skips managedFields as it skips other members: its records have no changedBy. Only this benchmark needs
// it, so the program has no switch for it.
const unattributed = "unattributed"

func (l *lab) buildUnattributed(ctx context.Context) error {
	const path, reads, skips = "internal/delta/changedby.go", "if s.Peek() != '[' {", "if s != nil {"
	text, err := os.ReadFile(filepath.Join(l.source(), path))
	if err != nil {
		return err
	}
	if strings.Count(string(text), reads) != 1 {
		return errors.New(path + " does not read managedFields as this benchmark expects")
	}
	return l.build(ctx, unattributed, map[string]string{path: strings.Replace(string(text), reads, skips, 1)})
}

func withoutChangedBy(e *exporter) { e.program = unattributed }

func changedByLive(ctx context.Context, l *lab) ([]check, error) {
	if err := l.buildUnattributed(ctx); err != nil {
		return nil, err
	}
	n := l.scaled(liveWrites)
	return l.changedBy(ctx, l.liveExporter("without", n, withoutChangedBy), l.liveExporter("with", n))
}

func changedByPods(ctx context.Context, l *lab) ([]check, error) {
	if err := l.buildUnattributed(ctx); err != nil {
		return nil, err
	}
	n, err := l.loadPods(ctx)
	if err != nil {
		return nil, err
	}
	without := pods()
	withoutChangedBy(&without)
	return l.changedBy(ctx, l.exporterSide("without", n, without), l.exporterSide("with", n, pods()))
}

func (l *lab) changedBy(ctx context.Context, without, with side) ([]check, error) {
	paired, err := l.paired(ctx, without, with)
	if err != nil {
		return nil, err
	}
	of := paired.named("without", "with")
	return []check{
		of.against("CPU per change, µs", cpuEach, atMost(1.05, "≤ 1.05 × without")),
		of.against("bytes per record", func(s sample) float64 { return float64(s.Bytes) }, nil),
	}, nil
}
