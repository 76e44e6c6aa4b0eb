{{- /*
The rights that the configuration needs, as `kubeferry rbac` prints them: a JSON object with the rules of each namespace, under "" those of
the ClusterRole. docs/install.md explains each.
*/ -}}
{{- define "kubeferry.rights" -}}
{{- $config := include "kubeferry.config" . | fromYaml -}}
{{- $rights := dict -}}{{- /* namespace|group|resource|name|verbs */ -}}
{{- $used := list -}}
{{- range $config.pipelines -}}
  {{- range .sources | default (list "*") -}}{{- $used = append $used . -}}{{- end -}}
{{- end -}}
{{- range $i, $source := $config.sources -}}
  {{- if or (has "*" $used) (has $source.name $used) -}}
    {{- $name := regexReplaceAll "^.*=" (regexFind "(^|,)metadata\\.name==?[^,]*" ($source.fieldSelector | default "")) "" -}}
    {{- if contains "${" (print $name $source.resources (include "kubeferry.namespaces" $source)) -}}
      {{- fail (printf "config.sources[%d]: write names without ${…}: the rights are derived from them (or set rbac.create: false)" $i) -}}
    {{- end -}}
    {{- if dig "namespaces" "selector" "" $source -}}
      {{- $_ := set $rights "||namespaces||list,watch" true -}}
    {{- end -}}
    {{- range $j, $text := $source.resources -}}
      {{- $resource := include "kubeferry.resource" $text | fromJson -}}
      {{- if not $resource.resource -}}
        {{- fail (printf "config.sources[%d].resources[%d]: write %s in full, as in apps/v1/deployments: the rights are derived from it (or set rbac.create: false)" $i $j $text) -}}
      {{- end -}}
      {{- range include "kubeferry.namespaces" $source | fromJsonArray -}}
        {{- $_ := set $rights (printf "%s|%s|%s|%s|list,watch" . $resource.group $resource.resource $name) true -}}
        {{- with include "kubeferry.definition" $resource -}}{{- $_ := set $rights . true -}}{{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $enrich := false -}}
{{- range $config.pipelines -}}{{- if .enrich -}}{{- $enrich = true -}}{{- end -}}{{- end -}}
{{- if $enrich -}}
  {{- $default := list "v1/nodes" "v1/persistentvolumeclaims" "v1/pods" "v1/services" "apps/v1/daemonsets" "apps/v1/deployments" "apps/v1/replicasets" "apps/v1/statefulsets" "autoscaling/v2/horizontalpodautoscalers" "batch/v1/cronjobs" "batch/v1/jobs" "policy/v1/poddisruptionbudgets" -}}
  {{- range dig "enrichment" "resources" $default $config -}}
    {{- $resource := include "kubeferry.resource" . | fromJson -}}
    {{- $_ := set $rights (printf "|%s|%s||list,watch" $resource.group $resource.resource) true -}}
    {{- with include "kubeferry.definition" $resource -}}{{- $_ := set $rights . true -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- if $config.stateDir -}}
  {{- $_ := set $rights "||namespaces|kube-system|get" true -}}
{{- end -}}
{{- with $config.leaderElection -}}
  {{- $namespace := .leaseNamespace | default $.Release.Namespace -}}
  {{- $_ := set $rights (printf "%s|coordination.k8s.io|leases|%s|get,update" $namespace .leaseName) true -}}
  {{- $_ := set $rights (printf "%s|coordination.k8s.io|leases||create" $namespace) true -}}
  {{- $_ := set $rights (printf "%s||serviceaccounts/token|%s|create" $.Release.Namespace (include "kubeferry.serviceAccount" $)) true -}}
  {{- $_ := set $rights "|authentication.k8s.io|tokenreviews||create" true -}}
{{- end -}}
{{- /* The resources of one group with the same name and verbs share a rule, and what another rule includes is left out. */ -}}
{{- $rules := dict -}}
{{- range keys $rights | sortAlpha -}}
  {{- $r := splitList "|" . -}}
  {{- $namespace := index $r 0 -}}{{- $group := index $r 1 -}}{{- $resource := index $r 2 -}}{{- $name := index $r 3 -}}{{- $verbs := index $r 4 -}}
  {{- $cluster := hasKey $rights (printf "|%s|%s|%s|%s" $group $resource $name $verbs) -}}
  {{- $unnamed := hasKey $rights (printf "%s|%s|%s||%s" $namespace $group $resource $verbs) -}}
  {{- $both := hasKey $rights (printf "|%s|%s||%s" $group $resource $verbs) -}}
  {{- if not (or (and $namespace (or $cluster $both)) (and $name (or $unnamed $both))) -}}
    {{- $key := printf "%s|%s|%s|%s" $namespace $group $name $verbs -}}
    {{- $_ := set $rules $key (append (get $rules $key | default list) $resource) -}}
  {{- end -}}
{{- end -}}
{{- $found := dict -}}
{{- range $key, $resources := $rules -}}
  {{- $r := splitList "|" $key -}}
  {{- $rule := dict "apiGroups" (list (index $r 1)) "resources" $resources "verbs" (splitList "," (index $r 3)) -}}
  {{- if index $r 2 -}}{{- $_ := set $rule "resourceNames" (list (index $r 2)) -}}{{- end -}}
  {{- $_ := set $found (index $r 0) (append (get $found (index $r 0) | default list) $rule) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* The right to the CustomResourceDefinition of a resource, or nothing for one of Kubernetes' own. */ -}}
{{- define "kubeferry.definition" -}}
{{- if not .builtIn -}}
|apiextensions.k8s.io|customresourcedefinitions|{{ if ne .resource "*" }}{{ .resource }}.{{ .group }}{{ end }}|list
{{- end -}}
{{- end -}}

{{- /* The parts of apps/v1/deployments, v1/pods, deployments.v1.apps or pods.v1, or of apps/*, *.apps, apps/v1/* or v1/*; without resource what
is none of them. */ -}}
{{- define "kubeferry.resource" -}}
{{- $group := "" -}}
{{- $resource := "" -}}
{{- $parts := splitList "/" . -}}
{{- if regexMatch "^[^./]+\\.v[0-9][^./]*(\\.[^/]*)?$" . -}}
  {{- $resource = splitList "." . | first -}}
  {{- $group = join "." (slice (splitList "." .) 2) -}}
{{- else if hasPrefix "*." . -}}
  {{- $resource = "*" -}}
  {{- $group = trimPrefix "*." . -}}
{{- else if and (eq (len $parts) 2) (eq (last $parts) "*") (not (regexMatch "^v[0-9][a-z0-9]*$" (first $parts))) -}}
  {{- $resource = "*" -}}
  {{- $group = first $parts -}}
{{- else if eq (len $parts) 2 -}}
  {{- $resource = last $parts -}}
{{- else if eq (len $parts) 3 -}}
  {{- $group = first $parts -}}
  {{- $resource = last $parts -}}
{{- end -}}
{{- $builtIn := list "admissionregistration.k8s.io" "apiextensions.k8s.io" "apiregistration.k8s.io" "authentication.k8s.io" "authorization.k8s.io" "certificates.k8s.io" "coordination.k8s.io" "discovery.k8s.io" "events.k8s.io" "flowcontrol.apiserver.k8s.io" "internal.apiserver.k8s.io" "networking.k8s.io" "node.k8s.io" "rbac.authorization.k8s.io" "resource.k8s.io" "scheduling.k8s.io" "storage.k8s.io" "storagemigration.k8s.io" -}}
{{- toJson (dict "group" $group "resource" $resource "builtIn" (or (not (contains "." $group)) (has $group $builtIn))) -}}
{{- end -}}

{{- /* The namespaces that a source is watched in, one by one; [""] if in the whole cluster. */ -}}
{{- define "kubeferry.namespaces" -}}
{{- $include := dig "namespaces" "include" list . | default list -}}
{{- $exclude := dig "namespaces" "exclude" list . | default list -}}
{{- if or (dig "namespaces" "selector" "" .) (not $include) (gt (len $include) 20) (regexMatch "[*?[\\\\]" (join "" $include)) -}}
[""]
{{- else -}}
  {{- $left := list -}}
  {{- range $namespace := $include -}}
    {{- $excluded := false -}}
    {{- range $exclude -}}
      {{- $pattern := regexQuoteMeta . | replace "\\*" ".*" | replace "\\?" "." | replace "\\[\\^" "[^" | replace "\\[" "[" | replace "\\]" "]" -}}
      {{- if regexMatch (printf "^%s$" $pattern) $namespace -}}{{- $excluded = true -}}{{- end -}}
    {{- end -}}
    {{- if not $excluded -}}{{- $left = append $left $namespace -}}{{- end -}}
  {{- end -}}
  {{- toJson (uniq $left) -}}
{{- end -}}
{{- end -}}
