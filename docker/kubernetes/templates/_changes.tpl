{{- /* Puts the values into one object, in place. Of: object, settings (TOML), Values, Release. */ -}}
{{- define "turnpike.change" -}}
{{- $object := .object }}
{{- if eq $object.kind "Deployment" }}
  {{- $given := index .Values (trimPrefix "turnpike-" $object.metadata.name) }}
  {{- $pod := $object.spec.template.spec }}
  {{- $container := first $pod.containers }}
  {{- $_ := set $container "image" $given.image }}
  {{- with $given.replicas }}{{ $_ := set $object.spec "replicas" . }}{{ end }}
  {{- $about := dict "deployment" $object.spec "pod" $pod "container" $container }}
  {{- if eq $object.metadata.name "turnpike-gateway" }}{{ include "turnpike.gateway" (merge $about .) }}{{ end }}
  {{- if eq $object.metadata.name "turnpike-engines" }}{{ include "turnpike.engines" (merge $about .) }}{{ end }}
  {{- $_ := mergeOverwrite $pod $given.pod }}
  {{- $_ := mergeOverwrite $container $given.container }}
{{- else if eq $object.kind "RoleBinding" }}
  {{- range $object.subjects }}{{ $_ := set . "namespace" $.Release.Namespace }}{{ end }}
{{- else if and (eq $object.kind "Service") (eq $object.metadata.name "turnpike") .Values.picker.enabled }}
  {{- $_ := mergeOverwrite (first $object.spec.ports) (dict "port" 9002 "appProtocol" "kubernetes.io/h2c") }}
{{- else if and (eq $object.kind "NetworkPolicy") (eq $object.metadata.name "turnpike-gateway") }}
  {{- range $object.spec.ingress }}
    {{- range .from }}
      {{- with .namespaceSelector }}
        {{- $_ := set .matchLabels "kubernetes.io/metadata.name" $.Values.networkPolicy.monitoring }}
      {{- end }}
    {{- end }}
  {{- end }}
  {{- $_ := set $object.spec "egress" (concat $object.spec.egress .Values.networkPolicy.egress) }}
{{- else if eq $object.kind "ScaledObject" }}
  {{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}
    {{- fail "autoscaling.minReplicas: it is more than maxReplicas" }}
  {{- end }}
  {{- $_ := set $object.spec "minReplicaCount" .Values.autoscaling.minReplicas }}
  {{- $_ := set $object.spec "maxReplicaCount" .Values.autoscaling.maxReplicas }}
  {{- $trigger := (first $object.spec.triggers).metadata }}
  {{- $_ := set $trigger "serverAddress" .Values.autoscaling.prometheus }}
  {{- $here := printf "namespace=%q" .Release.Namespace }}
  {{- $_ := set $trigger "query" (replace "namespace=\"turnpike\"" $here $trigger.query) }}
{{- end }}
{{- end }}

{{- /* Of: deployment, pod, container, settings, Values. */ -}}
{{- define "turnpike.gateway" -}}
{{- /* A change of the settings rolls the pods. */}}
{{- $_ := set .deployment.template.metadata "annotations" (dict "checksum/settings" (sha256sum .settings)) }}
{{- if .Values.picker.enabled }}
  {{- $_ := set .container "args" (concat (list "picker") (rest .container.args)) }}
  {{- $_ := set (first .container.ports) "containerPort" 9002 }}
  {{- $picks := dict "name" "picks" "containerPort" 8083 }}
  {{- $_ := set .container "ports" (concat (list (first .container.ports) $picks) (rest .container.ports)) }}
{{- end }}
{{- if not (fromToml .settings).shared }}
  {{- $env := list }}
  {{- range .container.env }}{{ if eq .name "VLLM_API_KEY" }}{{ $env = append $env . }}{{ end }}{{ end }}
  {{- $_ := set .container "env" $env }}
  {{- $ports := list }}
  {{- range .container.ports }}{{ if not (has .name (list "peers" "picks")) }}{{ $ports = append $ports . }}{{ end }}{{ end }}
  {{- $_ := set .container "ports" $ports }}
{{- end }}
{{- end }}

{{- define "turnpike.engines" -}}
{{- $engines := .Values.engines }}
{{- if .Values.autoscaling.enabled }}{{ $_ := unset .deployment "replicas" }}{{ end }}
{{- $args := concat (list $engines.model) (rest .container.args) $engines.args }}
{{- if not $engines.plugin }}
  {{- $args = without $args "--scheduler-cls=turnpike_vllm.scheduler.TurnpikeScheduler" }}
{{- end }}
{{- $_ := set .container "args" $args }}
{{- range .pod.volumes }}
  {{- if and $engines.claim (eq .name "home") }}
    {{- $_ := set (unset . "emptyDir") "persistentVolumeClaim" (dict "claimName" $engines.claim) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "turnpike.labels" -}}
app.kubernetes.io/part-of: turnpike
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
