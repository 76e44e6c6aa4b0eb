// Command bench measures kubeferry against a program that copies a watch's bytes unread (bench/floor), both as child
// processes on a real control plane, and prints a table with the targets. docs/performance.md explains it.
//
// CPU time and memory of a process are read from Linux. Everything runs on this machine, so nothing
// else of weight should.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var (
	errUsage  = errors.New("wrong usage")
	errMissed = errors.New("a target was missed")
)

// command is the program without the process around it.
func command(ctx context.Context, args []string, out, errOut io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errOut)
	pattern := flags.String("run", ".", "run the rows whose names match this `regexp`")
	list := flags.Bool("list", false, "list the rows")
	strict := flags.Bool("strict", false, "exit with 1 if a target was missed")
	o := options{}
	flags.IntVar(&o.pairs, "pairs", 3, "how many paired runs the medians are of")
	flags.Float64Var(&o.scale, "scale", 1, "multiplies the number of objects; ratios at small scales are of little meaning")
	flags.StringVar(&o.keep, "keep", "", "leave logs, and profiles, in this `directory`")
	flags.StringVar(&o.checkout, "checkout", "", "build kubeferry from the checkout in this `directory`, to compare versions; not with -profile")
	flags.BoolVar(&o.profile, "profile", false, "write CPU and allocation profiles of kubeferry into -keep; they cost a few per cent")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil || flags.NArg() > 0 || o.pairs < 1 || o.scale <= 0 || o.profile && (o.keep == "" || o.checkout != "") {
		return fmt.Errorf("%w: bench [-run REGEXP] [-pairs 3] [-scale 1]; -h tells more", errUsage)
	}
	selection, err := regexp.Compile(*pattern)
	if err != nil {
		return fmt.Errorf("%w: -run: %w", errUsage, err)
	}
	var selected []row
	for _, r := range rows() {
		if selection.MatchString(r.name) {
			selected = append(selected, r)
		}
	}
	if *list {
		for _, r := range selected {
			fmt.Fprintf(out, "%-16s %s\n", r.name, r.title)
		}
		return nil
	}
	results, err := measure(ctx, o, selected, errOut)
	if len(results.Rows) > 0 { // also of a run that did not come to its end
		results.print(out)
	}
	if err == nil && *strict && results.missed() {
		return errMissed
	}
	return err
}

// measure runs the rows one after the other. What was measured before an error is in the results.
func measure(ctx context.Context, o options, selected []row, log io.Writer) (*results, error) {
	results := &results{Scale: o.scale, Pairs: o.pairs}
	l, err := newLab(ctx, o, log)
	if err != nil {
		return results, err
	}
	defer l.close()
	results.Machine = describeMachine(ctx, l.root)
	var failed []error
	for _, r := range selected {
		l.say("%s: %s", r.name, r.title)
		checks, err := r.run(ctx, l)
		if err != nil { // the other rows need nothing of this one
			failed = append(failed, fmt.Errorf("%s: %w", r.name, err))
			l.say("%s: %v", r.name, err)
			if ctx.Err() != nil {
				break
			}
			continue
		}
		results.Rows = append(results.Rows, rowResult{Name: r.name, Title: r.title, Checks: checks})
		for _, c := range checks {
			l.say("    %s", c)
		}
	}
	return results, errors.Join(failed...)
}
