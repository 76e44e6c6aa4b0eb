// Package exampleprograms prepares the programs of examples/ for tests, as their README says: what is written in Go is built, what the others
// import is fetched into the user's cache.
package exampleprograms

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/cache"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// Command is a program and the arguments that come before its own.
type Command struct {
	Path string
	Args []string
	Dir  string // to run it in
}

// Go returns one of the programs written in Go.
func Go(name string) programs.Program {
	return programs.Example(name)
}

var goPrograms = []string{"kafka", "jetstream", "webhook"}

// Prepare builds and fetches all of it. Without python3 or java it fails only where CI=true wants them.
func Prepare(ctx context.Context, log io.Writer) error {
	for _, name := range goPrograms {
		if err := Go(name).Build(ctx, log); err != nil {
			return err
		}
	}
	for _, prepare := range []assets.Prepare{preparePython, prepareJava} {
		if err := prepare(ctx, log); err != nil && (ctx.Err() != nil || os.Getenv("CI") == "true") {
			return err
		} else if err != nil {
			fmt.Fprintf(log, "an example cannot be tested: %v\n", err)
		}
	}
	return nil
}

// Python returns a script of examples/python with an interpreter that has what it imports.
func Python(script string) (Command, error) {
	root, name, err := named("python", "requirements.txt")
	if err != nil {
		return Command{}, err
	}
	dir, err := cache.Find(name)
	return Command{Path: filepath.Join(dir, "bin", "python"), Args: []string{filepath.Join(root, script)}, Dir: root}, err
}

func preparePython(ctx context.Context, log io.Writer) error {
	root, name, err := named("python", "requirements.txt")
	if err != nil {
		return err
	}
	_, err = cache.Dir(ctx, log, name, func(ctx context.Context, dir string) error {
		fmt.Fprintf(log, "fetching what the examples in Python import\n")
		if err := run(ctx, root, "python3", "-m", "venv", dir); err != nil {
			return err
		}
		return run(ctx, root, filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-input", "-r", "requirements.txt")
	})
	return err
}

// Java returns the program of examples/java, run from its source.
func Java() (Command, error) {
	root, name, err := named("java", "pom.xml")
	if err != nil {
		return Command{}, err
	}
	dir, err := cache.Find(name)
	if err != nil {
		return Command{}, err
	}
	java, err := exec.LookPath("java")
	return Command{Path: java, Args: []string{"-Xmx256m", "-cp", filepath.Join(dir, "*"), filepath.Join(root, "KafkaTable.java")}, Dir: root}, err
}

func prepareJava(ctx context.Context, log io.Writer) error {
	root, name, err := named("java", "pom.xml")
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("javac"); err != nil {
		return fmt.Errorf("java without its compiler runs no source file: %w", err)
	}
	_, err = cache.Dir(ctx, log, name, func(ctx context.Context, dir string) error {
		fmt.Fprintf(log, "fetching what the example in Java imports\n")
		return run(ctx, root, "mvn", "--quiet", "--batch-mode", "dependency:copy-dependencies", "-DoutputDirectory="+dir)
	})
	return err
}

// named returns the directory of the examples in a language, and the name of what they import in the cache.
func named(language, list string) (root, name string, err error) {
	top, err := programs.Root()
	if err != nil {
		return "", "", err
	}
	root = filepath.Join(top, "examples", language)
	text, err := os.ReadFile(filepath.Join(root, list))
	digest := sha256.Sum256(text)
	return root, "examples-" + language + "/" + hex.EncodeToString(digest[:])[:12], err
}

func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
