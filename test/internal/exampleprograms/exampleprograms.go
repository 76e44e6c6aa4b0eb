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
	"regexp"
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

// Prepare builds and fetches all of it. Without python3 or java it fails only where CI=true requires them.
func Prepare(ctx context.Context, log io.Writer) error {
	for _, name := range goPrograms {
		if err := Go(name).Build(ctx, log); err != nil {
			return err
		}
	}
	for _, prepare := range []assets.Prepare{linkGo, preparePython, prepareJava} {
		if err := prepare(ctx, log); err != nil && (ctx.Err() != nil || os.Getenv("CI") == "true") {
			return err
		} else if err != nil {
			fmt.Fprintf(log, "an example cannot be tested: %v\n", err)
		}
	}
	return nil
}

// GoEnv is the environment in which `go run` uses what Prepare has linked.
var GoEnv = []string{"GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false", "CGO_ENABLED=0"}

// linkGo has the program that the README runs in the build cache, where `go run` finds it.
func linkGo(ctx context.Context, _ io.Writer) error {
	root, _, _, err := Shown("go")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", "-exec", "true", "./kafka")
	cmd.Dir, cmd.Env = root, append(os.Environ(), GoEnv...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("link the example in Go: %w: %s", err, out)
	}
	return nil
}

// Python returns a script of examples/python with an interpreter that has what it imports.
func Python(script string) (Command, error) {
	root, dir, err := Fetched("python")
	return Command{Path: filepath.Join(dir, ".venv", "bin", "python"), Args: []string{filepath.Join(root, script)}, Dir: root}, err
}

func preparePython(ctx context.Context, log io.Writer) error {
	return fetch(ctx, log, "python")
}

// Java returns the program of examples/java, run from its source.
func Java() (Command, error) {
	root, dir, err := Fetched("java")
	if err != nil {
		return Command{}, err
	}
	java, err := exec.LookPath("java")
	libraries := filepath.Join(dir, "target", "dependency", "*")
	return Command{Path: java, Args: []string{"-Xmx256m", "-cp", libraries, filepath.Join(root, "KafkaTable.java")}, Dir: root}, err
}

func prepareJava(ctx context.Context, log io.Writer) error {
	if _, err := exec.LookPath("javac"); err != nil {
		return fmt.Errorf("java without its compiler runs no source file: %w", err)
	}
	return fetch(ctx, log, "java")
}

// lists are the files that name what the examples import.
var lists = map[string]string{"python": "requirements.txt", "java": "pom.xml"}

// Shown returns the directory of the examples in a language, the command that examples/README.md shows first, which fetches what they
// import, and the one that runs an example. Neither has the change of directory, nor a comment.
func Shown(language string) (root, first, second string, err error) {
	top, err := programs.Root()
	if err != nil {
		return "", "", "", err
	}
	page, err := os.ReadFile(filepath.Join(top, "examples", "README.md"))
	if err != nil {
		return "", "", "", err
	}
	commands := regexp.MustCompile(`(?m)^    cd ` + language + `(?: && (.*))?\n    (.*?)(?: +# .*)?$`).FindSubmatch(page)
	if commands == nil {
		return "", "", "", fmt.Errorf("examples/README.md has no commands for %s", language)
	}
	return filepath.Join(top, "examples", language), string(commands[1]), string(commands[2]), nil
}

// fetch runs the first command in the cache, beside a copy of the list of what the examples import.
func fetch(ctx context.Context, log io.Writer, language string) error {
	root, name, err := named(language)
	if err != nil {
		return err
	}
	_, err = cache.Dir(ctx, log, name, func(ctx context.Context, dir string) error {
		fmt.Fprintf(log, "fetching what the examples in %s import\n", language)
		_, first, _, err := Shown(language)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, lists[language]))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, lists[language]), text, 0o600); err != nil {
			return err
		}
		return run(ctx, dir, "sh", "-c", first)
	})
	return err
}

// Fetched returns the directory of the examples in a language, and the one of the cache in which their first command has run.
func Fetched(language string) (root, dir string, err error) {
	root, name, err := named(language)
	if err != nil {
		return "", "", err
	}
	dir, err = cache.Find(name)
	return root, dir, err
}

// named returns the directory of the examples in a language, and the name of what they import in the cache.
func named(language string) (root, name string, err error) {
	root, first, _, err := Shown(language)
	if err != nil {
		return "", "", err
	}
	text, err := os.ReadFile(filepath.Join(root, lists[language]))
	digest := sha256.Sum256(append(text, first...))
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
