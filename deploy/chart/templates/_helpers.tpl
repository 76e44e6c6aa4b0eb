{{- define "kubeferry.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Of what is not in the release's namespace, or has a name that others in the cluster could have too. */ -}}
{{- define "kubeferry.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "kubeferry.fullname" .) -}}
{{- end -}}

{{- define "kubeferry.selector" -}}
app.kubernetes.io/name: kubeferry
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kubeferry.labels" -}}
{{ include "kubeferry.selector" . }}
app.kubernetes.io/part-of: kubeferry
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kubeferry.serviceAccount" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create: false needs serviceAccount.name" -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (include "kubeferry.fullname" .) -}}
{{- end -}}

{{- /* The configuration file. */ -}}
{{- define "kubeferry.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if not (or $config.cluster .Values.existingConfigMap) -}}
{{- fail "config.cluster: name the cluster, as in --set config.cluster=prod-eu-1. The name is part of every id and every record: each cluster needs its own, and it must never change" -}}
{{- end -}}
{{- range $key := list "server" "replication" -}}
  {{- $listen := dig $key "listen" "" $config -}}
  {{- if regexMatch "^(127\\.|localhost:|\\[::1\\])" $listen -}}
    {{- fail (printf "config.%s.listen: only the Pod itself reaches %s, so probes and standbys would fail: write %q" $key $listen (print ":" (regexFind "[0-9]+$" $listen))) -}}
  {{- end -}}
{{- end -}}
{{- if not $config.stateDir -}}
  {{- $config = omit $config "stateDir" -}}
  {{- range $config.pipelines -}}{{- with .backlog -}}{{- $_ := unset . "maxDiskBytes" -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if .Values.leaderElection -}}
{{- if not $config.stateDir -}}{{- fail "leaderElection needs config.stateDir" -}}{{- end -}}
{{- $listen := dig "replication" "listen" ":8443" $config -}}
{{- $config = mergeOverwrite (dict
      "leaderElection" (dict "leaseName" (include "kubeferry.fullname" .))
      "replication" (dict "listen" $listen "advertise" (printf "[${POD_IP}]:%s" (regexFind "[0-9]+$" $listen)))) $config -}}
{{- else if or $config.leaderElection $config.replication (gt (int .Values.replicas) 1) -}}
{{- fail "several replicas, config.leaderElection and config.replication need leaderElection: true" -}}
{{- else if and $config.stateDir (not .Values.persistence.enabled) -}}
{{- fail "without leaderElection each rollout would lose the state: set persistence.enabled: true, or config.stateDir: null" -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- /* The name stays, so that upgrades leave no old ones behind. An annotation of the Pods has a digest of the content, which rolls them out. */ -}}
{{- define "kubeferry.configMap" -}}
{{- .Values.existingConfigMap | default (printf "%s-config" (include "kubeferry.fullname" .)) -}}
{{- end -}}

{{- /* A security context without the keys that are null; empty for none. */ -}}
{{- define "kubeferry.podSecurityContext" -}}
{{- with .Values.podSecurityContext -}}
{{- $context := deepCopy . -}}
{{- if and $.Values.config.stateDir $.Values.persistence.enabled .runAsGroup (not (hasKey . "fsGroup")) -}}
{{- $_ := set $context "fsGroup" .runAsGroup -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}
{{- end -}}

{{- /* The MiB of a size such as 64Mi, or of the second argument where it is not set, or a variable. */ -}}
{{- define "kubeferry.mebibytes" -}}
{{- $size := toString (index . 0 | default (index . 1)) -}}
{{- if contains "$" $size -}}{{- $size = index . 1 -}}{{- end -}}
{{- $factors := dict "" 1.0 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 -}}
{{- $unit := regexFind "[A-Za-z]+$" (regexReplaceAll "e[+].*" $size "") -}}
{{- divf (mulf (trimSuffix $unit $size | float64) (get $factors $unit)) 1048576.0 -}}
{{- end -}}

{{- /* Disk of the state in MiB, as docs/operations.md has it. The file is up to 1.7 times as large as what is in it, and a standby that copies
the state anew keeps the former copy meanwhile. */ -}}
{{- define "kubeferry.disk" -}}
{{- $config := include "kubeferry.config" . | fromYaml -}}
{{- range $i, $sink := $config.sinks -}}
  {{- if hasPrefix (print (trimSuffix "/" $config.stateDir) "/") (get ($sink.file | default dict) "path" | toString) -}}
    {{- fail (printf "config.sinks[%d].file.path: it lies in stateDir, whose size has no room for a file without a bound: mount another volume for it" $i) -}}
  {{- end -}}
{{- end -}}
{{- $sum := include "kubeferry.mebibytes" (list (dig "deadLetters" "maxBytes" "" $config) "1Gi") | float64 -}}
{{- range $config.pipelines -}}
{{- $sum = addf $sum (include "kubeferry.mebibytes" (list (dig "backlog" "maxDiskBytes" "" .) "10Gi") | float64) -}}
{{- end -}}
{{- $sum = ceil (addf (mulf 2.0 $sum) 1536.0) | int64 -}}
{{- if mod $sum 1024 -}}{{- $sum -}}Mi{{- else -}}{{- div $sum 1024 -}}Gi{{- end -}}
{{- end -}}

{{- /* Memory for the backlogs, for what is kept beside them, and for about a million objects. */ -}}
{{- define "kubeferry.memory" -}}
{{- $config := include "kubeferry.config" . | fromYaml -}}
{{- $sum := 0.0 -}}
{{- $enrich := false -}}
{{- $previous := false -}}
{{- range $config.pipelines -}}
{{- $sum = addf $sum (include "kubeferry.mebibytes" (list (dig "backlog" "maxBytes" "" .) "64Mi") | float64) -}}
{{- if .enrich -}}{{- $enrich = true -}}{{- end -}}
{{- if or (not (has (.diff | default "none") (list "none"))) (contains "changed" (toJson .filters)) (contains "oldObject" (toJson (list .filters .transforms))) -}}{{- $previous = true -}}{{- end -}}
{{- end -}}
{{- if $enrich -}}{{- $sum = addf $sum (include "kubeferry.mebibytes" (list (dig "enrichment" "maxBytes" "" $config) "32Mi") | float64) -}}{{- end -}}
{{- if $previous -}}{{- $sum = addf $sum (include "kubeferry.mebibytes" (list (dig "previous" "maxBytes" "" $config) "64Mi") | float64) -}}{{- end -}}
{{- ceil (addf 384.0 (mulf 2.0 $sum)) | int64 -}}Mi
{{- end -}}

{{- define "kubeferry.resources" -}}
{{- $derived := dict "limits" (dict "memory" (include "kubeferry.memory" .)) "requests" dict -}}
{{- if and .Values.config.stateDir (not .Values.persistence.enabled) -}}
{{- $_ := set $derived.requests "ephemeral-storage" (include "kubeferry.disk" .) -}}
{{- end -}}
{{- /* A request may not be more than its limit. */ -}}
{{- $request := get (.Values.resources.requests | default dict) "memory" -}}
{{- if and $request (gt (include "kubeferry.mebibytes" (list $request "0Mi") | float64) (include "kubeferry.mebibytes" (list $derived.limits.memory "0Mi") | float64)) -}}
{{- $_ := set $derived.limits "memory" $request -}}
{{- end -}}
{{- $limit := get (.Values.resources.limits | default dict) "ephemeral-storage" -}}
{{- $disk := get $derived.requests "ephemeral-storage" -}}
{{- if and $limit $disk (lt (include "kubeferry.mebibytes" (list $limit "0Mi") | float64) (include "kubeferry.mebibytes" (list $disk "0Mi") | float64)) -}}
{{- $_ := set $derived.requests "ephemeral-storage" $limit -}}
{{- end -}}
{{- toYaml (mergeOverwrite $derived (deepCopy .Values.resources)) -}}
{{- end -}}

{{- /* More than shutdown.grace and the 10s that closing may take. */ -}}
{{- define "kubeferry.terminationGracePeriodSeconds" -}}
{{- $epoch := toDate "2006-01-02" "2000-01-01" -}}
{{- $grace := dig "shutdown" "grace" "20s" .Values.config -}}
{{- add 20 (sub (mustDateModify (toString $grace) $epoch | unixEpoch) ($epoch | unixEpoch)) -}}
{{- end -}}

{{- define "kubeferry.port" -}}
{{- regexFind "[0-9]+$" (dig "server" "listen" ":8080" .Values.config) -}}
{{- end -}}

{{- define "kubeferry.replicationPort" -}}
{{- regexFind "[0-9]+$" (dig "replication" "listen" ":8443" .Values.config) -}}
{{- end -}}
