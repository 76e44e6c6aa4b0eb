package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeferry/kubeferry/test/load"
)

// loaders is how many requests the loading of objects has under way at once.
const loaders = 16

// write is one request that makes an object, or changes it.
type write struct {
	method, path string
	agent        string // names the manager in managedFields
	body         []byte
}

// loadOnce makes n objects by the writes that each needs, unless the set exists.
func (l *lab) loadOnce(ctx context.Context, set string, n int, writes func(i int) []write) error {
	if l.loaded[set] {
		return nil
	}
	l.say("    loading %d objects: %s", n, set)
	begin := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var loading sync.WaitGroup
	for range loaders {
		loading.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				for _, w := range writes(i) {
					if err := l.send(ctx, w); err != nil {
						cancel(err)
						return
					}
				}
			}
		})
	}
	loading.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("load %s: %w", set, err)
	}
	l.loaded[set] = true
	l.say("    loaded, %.0f objects/s", float64(n)/time.Since(begin).Seconds())
	return nil
}

func (l *lab) send(ctx context.Context, w write) error {
	req, err := http.NewRequestWithContext(ctx, w.method, l.config.Host+w.path, bytes.NewReader(w.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if w.method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if w.agent != "" {
		req.Header.Set("User-Agent", w.agent)
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %.300s", w.method, w.path, resp.Status, answer)
	}
	return nil
}

// namespace makes a namespace.
func (l *lab) namespace(ctx context.Context, name string) error {
	return load.CreateNamespaces(ctx, l.config, name)
}

const (
	controllers = "kube-controller-manager/v1.36"
	kubelet     = "kubelet/v1.36"
)

// Events of about 1 KB as the kubelet writes them, a quarter of it managedFields.
func (l *lab) loadEvents(ctx context.Context) (n int, err error) {
	n = l.scaled(60_000)
	if err := l.namespace(ctx, "backlog"); err != nil {
		return 0, err
	}
	return n, l.loadOnce(ctx, "Events", n, func(i int) []write {
		return []write{{method: http.MethodPost, path: eventsPath, agent: kubelet, body: fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"Event","metadata":{"name":"web-6d4cf56db6-%05d.18a2b3c4d5e6f","namespace":"backlog"},`+
				`"involvedObject":{"kind":"Pod","namespace":"backlog","name":"web-6d4cf56db6-%05d","uid":"9c0c1e10-1267-466d-aa8d-%012d","apiVersion":"v1","resourceVersion":"42","fieldPath":"spec.containers{web}"},`+
				`"reason":"BackOff","message":"Back-off restarting failed container web in pod web-6d4cf56db6-%05d_backlog(9c0c1e10-1267-466d-aa8d-%012d)",`+
				`"source":{"component":"kubelet","host":"node-%d"},"firstTimestamp":"2026-11-21T00:12:03Z","lastTimestamp":"2026-11-21T00:12:03Z","count":1,"type":"Warning",`+
				`"reportingComponent":"kubelet","reportingInstance":"node-%d"}`, i, i, i, i, i, i%50, i%50)}}
	})
}

const eventsPath = "/api/v1/namespaces/backlog/events"

// loadPods makes Pods of about 7 KB: created as by a controller, their status as by a kubelet.
func (l *lab) loadPods(ctx context.Context) (n int, err error) {
	n = l.scaled(20_000)
	if err := l.namespace(ctx, "shop"); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(filepath.Join(l.root, "source", "testdata", "pod.json"))
	if err != nil {
		return 0, err
	}
	template, err := podTemplate(string(text))
	if err != nil {
		return 0, err
	}
	return n, l.loadOnce(ctx, "Pods", n, func(i int) []write {
		name := fmt.Sprintf("web-6d4cf56db6-%05d", i)
		body := []byte(strings.ReplaceAll(template, podName, name))
		return []write{
			{method: http.MethodPost, path: podsPath, agent: controllers, body: body},
			{method: http.MethodPut, path: podsPath + "/" + name + "/status", agent: kubelet, body: body},
		}
	})
}

const (
	podsPath = "/api/v1/namespaces/shop/pods"
	podName  = "web-6d4cf56db6-x7k2p"
)

// podTemplate takes out of a Pod what the API server gives it.
func podTemplate(pod string) (string, error) {
	cut := func(from, to string) error {
		begin := strings.Index(pod, from)
		if begin < 0 {
			return errors.New("pod.json has no " + from)
		}
		length := strings.Index(pod[begin:], to)
		if length < 0 {
			return errors.New("pod.json has no " + to)
		}
		pod = pod[:begin] + pod[begin+length:]
		return nil
	}
	if err := cut(`"uid":"4f0c`, `"creationTimestamp"`); err != nil {
		return "", err
	}
	// The member before it ends with a comma, and what follows is the end of the metadata.
	if err := cut(`,"managedFields"`, `},"spec"`); err != nil {
		return "", err
	}
	// The managedFields that the API server makes are longer than those of the file: without the probes it comes out even.
	if err := cut(`"livenessProbe"`, `"terminationMessagePath"`); err != nil {
		return "", err
	}
	return pod, nil
}

// kinds of objects for the rows with many known ones: ten resources that every cluster has.
var kinds = []struct{ api, kind, resource, fields string }{
	{"v1", "ConfigMap", "configmaps", `"data":{"application.yaml":"log: info\nport: 8080\nfeatures: [a, b, c]\n"}`},
	{"v1", "Secret", "secrets", `"data":{"password":"aHVudGVyMg==","username":"YWRtaW4="}`},
	{"v1", "ServiceAccount", "serviceaccounts", `"automountServiceAccountToken":false`},
	{"coordination.k8s.io/v1", "Lease", "leases", `"spec":{"holderIdentity":"web-0","leaseDurationSeconds":15}`},
	{"rbac.authorization.k8s.io/v1", "Role", "roles", `"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get","list"]}]`},
	{"networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", `"spec":{"podSelector":{"matchLabels":{"app":"web"}},"policyTypes":["Ingress"]}`},
	{"policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", `"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"web"}}}`},
	{"apps/v1", "Deployment", "deployments", `"spec":{"replicas":1,` + workload + `}`},
	{"apps/v1", "ReplicaSet", "replicasets", `"spec":{"replicas":1,` + workload + `}`},
	{"apps/v1", "StatefulSet", "statefulsets", `"spec":{"replicas":1,"serviceName":"web",` + workload + `}`},
}

const workload = `"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"shop/web:v42"}]}}`

// resourcesOf are the resources of kinds, as the configuration names them.
func knownResources() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.api + "/" + k.resource
	}
	return names
}

func collectionPath(n int) string {
	root := "/apis/"
	if !strings.Contains(kinds[n].api, "/") {
		root = "/api/"
	}
	return root + kinds[n].api + "/namespaces/known/" + kinds[n].resource
}

// loadKnown makes 100,000 objects in ten resources.
func (l *lab) loadKnown(ctx context.Context) (n int, err error) {
	n = max(100, l.scaled(100_000)/10*10)
	if err := l.namespace(ctx, "known"); err != nil {
		return 0, err
	}
	return n, l.loadOnce(ctx, "known objects", n, func(i int) []write {
		k := kinds[i%10]
		return []write{{method: http.MethodPost, path: collectionPath(i % 10), agent: controllers, body: fmt.Appendf(nil,
			`{"apiVersion":%q,"kind":%q,"metadata":{"name":"web-%06d","namespace":"known","labels":{"app":"web","bench":"known"}},%s}`,
			k.api, k.kind, i, k.fields)}}
	})
}
