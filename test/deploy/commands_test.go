package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/load"
)

// commands are what the docs show, without their comments, and what each has to print. They run in the order of their page, in one
// directory for a page, with the programs that they name on the PATH.
var commands = map[string]struct {
	prints   string // what it has to print
	streams  bool   // it goes on until Ctrl-C, while the objects of the cluster change
	testedBy string // the package whose tests run it instead
}{
	"bin/kubeferry tail":                                                    {streams: true, prints: "shop/web"},
	"bin/kubeferry tail -A":                                                 {streams: true, prints: "team-a/round"},
	"bin/kubeferry tail deploy,pods -n shop":                                {streams: true, prints: "deployments shop/web"},
	"bin/kubeferry tail pods -l app=web --types DELETED":                    {streams: true, prints: "DELETED"},
	"bin/kubeferry init deploy,cm --cluster prod-eu-1 -o kubeferry.yaml":    {prints: "wrote kubeferry.yaml"},
	"bin/kubeferry tail --config kubeferry.yaml":                            {streams: true, prints: "deployments shop/web"},
	"bin/kubeferry validate --config kubeferry.yaml --connect":              {prints: "kubeferry.yaml"},
	"bin/kubeferry explain --config kubeferry.yaml web.yaml":                {prints: "changes: sent to standard output"},
	"bin/kubeferry run --config kubeferry.yaml --kubeconfig ~/.kube/config": {streams: true, prints: `"subject":"/apis/apps/v1/namespaces/shop/deployments/web"`},
	"kubectl apply -k deploy/example":                                       {prints: "statefulset.apps/kubeferry created"},

	"kubeferry tail":                            {streams: true, prints: "shop/web"},
	"kubeferry tail -A":                         {streams: true, prints: "team-a/round"},
	"kubeferry tail deploy,pods -n shop,team-a": {streams: true, prints: "pods shop/web-0"},
	"kubeferry tail pods -l app=web --field-selector spec.nodeName=node-1":                                          {streams: true, prints: "pods shop/web-0"},
	"kubeferry tail deployments --filter 'object.spec.replicas > 3' --snapshot":                                     {streams: true, prints: "deployments shop/web"},
	"kubeferry tail v1/events --field-selector type=Warning --for 10m":                                              {streams: true, prints: "events shop/warning"},
	"kubeferry tail widgets.example.com -o json":                                                                    {streams: true, prints: `"kind":"Widget"`},
	"kubeferry init deploy,cm -n shop --sink nats --address nats://nats:4222 --cluster prod-eu-1 -o kubeferry.yaml": {prints: "wrote kubeferry.yaml"},
	"kubeferry rbac --config kubeferry.yaml --namespace kubeferry --service-account kubeferry | kubectl apply -f -": {prints: "role.rbac.authorization.k8s.io/kubeferry created"},

	"kubectl -n kubeferry get lease kubeferry -o jsonpath='{.spec.holderIdentity}' | cut -d_ -f1":                                               {}, // nobody holds it
	"kubectl -n kubeferry logs POD | jq -c 'select(.level == \"WARN\" and .namespace) | [.msg, .pipeline, .namespace, .resource, .name, .err]'": {testedBy: "test/e2e"},
	"kubectl -n kubeferry exec POD -- /kubeferry state show":                                                                                    {testedBy: "test/e2e"},
	"kubectl -n kubeferry exec POD -- /kubeferry snapshot --pipeline audit":                                                                     {testedBy: "test/e2e"},
	"kubectl -n kubeferry exec POD -- /kubeferry replay":                                                                                        {testedBy: "test/e2e"},
	"kubectl -n kubeferry exec POD -- /kubeferry replay --discard > discarded.jsonl":                                                            {testedBy: "cmd/exporter/replay"},
	"kubectl -n kubeferry exec -i POD -- /kubeferry replay - < letters.jsonl > left.jsonl":                                                      {testedBy: "cmd/exporter"},
	"kubectl -n kubeferry exec POD -- /kubeferry state recover /var/lib/kubeferry/kubeferry.db.set-aside-20261122T064500 > letters.jsonl":       {testedBy: "test/e2e"},
	"kubectl -n kubeferry exec POD -- /kubeferry trace deploy shop/web":                                                                         {testedBy: "test/e2e"},
	"helm upgrade --install audit deploy/chart --namespace audit --create-namespace --values values.yaml":                                       {prints: "NAME: audit"},
	"kubectl create namespace audit": {prints: "namespace/audit created"},
	"kubectl --namespace audit create secret generic hook --from-literal=token=TOKEN": {prints: "secret/hook created"},
	"kubectl label namespace audit pod-security.kubernetes.io/enforce=restricted":     {prints: "namespace/audit labeled"},

	`helm upgrade --install try deploy/chart --namespace try --create-namespace --set config.cluster=my-cluster,image.repository=REGISTRY/kubeferry,image.tag=TAG --set-json 'config.sinks=[{"name":"bus","stdout":{}}]'`: {prints: "NAME: try"},

	`helm upgrade --install try oci://ghcr.io/kubeferry/charts/kubeferry --namespace try --create-namespace --set config.cluster=my-cluster --set-json 'config.sinks=[{"name":"bus","stdout":{}}]'`: {testedBy: "test/deploy"}, // TestChartPrints
	"kubectl logs --namespace try --selector app.kubernetes.io/instance=try --follow | jq -c 'select(.level == null) | [.data.type, .subject]'":                                                     {testedBy: "test/nodes"},

	`helm upgrade --install try deploy/chart --namespace try --create-namespace --set config.cluster=my-cluster,image.repository=kubeferry,image.tag=TAG --set-json 'config.sinks=[{"name":"bus","stdout":{}}]'`: {prints: "NAME: try"},

	"kubectl rollout status --namespace try deployment/try-kubeferry": {testedBy: "test/nodes"},
	"helm uninstall try --namespace try":                              {prints: `release "try" uninstalled`},
	"kubectl delete namespace try":                                    {testedBy: "test/deploy"}, // there is no controller that would end it
	`helm template audit deploy/chart --values values.yaml --show-only templates/configmap.yaml | yq -r '.data."kubeferry.yaml"' > kubeferry.yaml`: {testedBy: "test/deploy"}, // TestChartDocumentedValues
	"kubeferry validate --config kubeferry.yaml --allow-unset":                                                                                     {prints: "kubeferry.yaml is valid"},
	"kubectl --namespace audit exec deploy/audit-kubeferry -- /kubeferry validate --connect":                                                       {testedBy: "test/e2e"},

	"make build":             {testedBy: "test/cmd/assets"}, // which builds the same program
	"make demo":              {testedBy: "test/cmd/demo"},
	"make test":              {testedBy: ".ci"},
	"make image VERSION=TAG": {testedBy: "test/deploy"},
	"make image VERSION=TAG PUSH=REGISTRY/kubeferry:TAG": {testedBy: "test/deploy"},
	"make release VERSION=v0.1.0":                        {testedBy: "test/deploy"},
	"make bench":                                         {testedBy: "test/cmd/bench"},
	"make bench BENCHFLAGS='-run backlog-events'":        {testedBy: "test/cmd/bench"},
	"make bench-sinks":                                   {testedBy: "test/bench"},
}

// command finds a line of an indented block that begins with a program.
var command = regexp.MustCompile(`(?m)^    ((?:bin/kubeferry|kubeferry|kubectl|make|go|helm|docker|curl) .*)$`)

// TestCommands: every command in the docs runs, as it stands there, on a cluster.
func TestCommands(t *testing.T) {
	plane := controlplane.ForTest(t, controlplane.Options{})
	if err := load.CreateNamespaces(t.Context(), plane.Config(), "shop", "team-a", "kubeferry"); err != nil {
		t.Fatal(err)
	}
	if err := load.InstallWidgets(t.Context(), plane.Config()); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	kubeconfig, err := clientcmd.LoadFromFile(plane.KubeconfigFile())
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig.Contexts[kubeconfig.CurrentContext].Namespace = "shop"
	if err := clientcmd.WriteToFile(*kubeconfig, filepath.Join(home, ".kube", "config")); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(home, "bin")
	for name, program := range map[string]programs.Program{"kubeferry": programs.Exporter(), "kubectl": programs.Kubectl(), "helm": programs.Helm()} {
		path, err := program.Path()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(bin, 0o755), os.Symlink(path, filepath.Join(bin, name))); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "HOME="+home, "KUBECONFIG=", "PATH="+bin+":"+os.Getenv("PATH"))
	change(t, home, env)

	root := filepath.Join("..", "..")
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	run := map[string]bool{}
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		dir := t.TempDir()
		if err := os.Symlink(bin, filepath.Join(dir, "bin")); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(filepath.Join(root, "deploy"))); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "web.yaml"), deployment)
		write(t, filepath.Join(dir, "values.yaml"), documentedValues(t))
		for _, found := range command.FindAllStringSubmatch(read(t, page), -1) {
			line, _, _ := strings.Cut(found[1], "   # ")
			line, _, _ = strings.Cut(line, "  #")
			line = strings.TrimSpace(line)
			wanted, known := commands[line]
			if run[line] = true; !known {
				t.Errorf("%s: no test runs %q", page, line)
				continue
			}
			if wanted.testedBy != "" {
				if _, err := os.Stat(filepath.Join(root, wanted.testedBy)); err != nil {
					t.Error(err)
				}
				continue
			}
			t.Run(line, func(t *testing.T) {
				shell := exec.CommandContext(t.Context(), "sh", "-c", "exec "+line)
				if strings.Contains(line, "|") {
					shell.Args[2] = line
				}
				shell.Dir, shell.Env = dir, env
				until := ""
				if wanted.streams {
					until = wanted.prints
				}
				out, err := runUntil(t.Context(), shell, until)
				if err != nil || !strings.Contains(out, wanted.prints) {
					t.Errorf("%v, and it has to print %q:\n%s", err, wanted.prints, out)
				}
			})
			if file := filepath.Join(dir, "kubeferry.yaml"); strings.Contains(line, "-o kubeferry.yaml") {
				write(t, file, read(t, file)+"\nserver: {listen: \"127.0.0.1:0\"}\n") // other tests run beside this one
			}
		}
	}
	t.Run("walk", func(t *testing.T) { testWalk(t, plane) })
	for line := range commands {
		if !run[line] {
			t.Errorf("the docs have no %q any more", line)
		}
	}
}

// runUntil runs a command to its end, or, once it has printed until, interrupts it as Ctrl-C does. It returns what it printed.
func runUntil(ctx context.Context, command *exec.Cmd, until string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	reader, writer, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer func() { _ = reader.Close() }()
	command.Stdout, command.Stderr = writer, writer
	if err := errors.Join(command.Start(), writer.Close()); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	defer stop()
	var out bytes.Buffer
	buffer := make([]byte, 64<<10)
	for {
		n, err := reader.Read(buffer)
		out.Write(buffer[:n])
		if until != "" && bytes.Contains(out.Bytes(), []byte(until)) {
			until = ""
			_ = command.Process.Signal(syscall.SIGINT) // it may have ended
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return out.String(), err
		}
	}
	return out.String(), command.Wait()
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {replicas: 3}
`

const pod = `
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: app, image: "nginx:1.27"}]}
`

// changing is a round of changes, which kubectl makes again and again: to a Deployment, a Pod, an Event and a Widget.
const changing = `
kubectl apply -f - <<END
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: %[1]d
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: "nginx:1.27"}]}}
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: round, namespace: team-a}
spec: {size: %[1]d}
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: round, namespace: shop}
spec: {size: %[1]d}
---
apiVersion: v1
kind: Event
metadata: {name: warning, namespace: shop}
involvedObject: {apiVersion: v1, kind: Pod, namespace: shop, name: web-0}
type: Warning
reason: Tested
message: round %[1]d
---
%[2]s
END
kubectl delete pod web-0 -n shop --grace-period=0 --force
`

// change changes objects until the test ends.
func change(t *testing.T, dir string, env []string) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for round := 4; ctx.Err() == nil; round++ {
			shell := exec.CommandContext(ctx, "sh", "-e", "-c", fmt.Sprintf(changing, round, pod))
			shell.Dir, shell.Env, shell.WaitDelay = dir, env, time.Second
			if out, err := shell.CombinedOutput(); err != nil && ctx.Err() == nil {
				t.Errorf("change the cluster: %v\n%s", err, out)
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}
