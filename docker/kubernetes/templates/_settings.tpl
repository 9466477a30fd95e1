{{- /* The gateways' turnpike.toml: that of the manifests, with `settings` laid over it. */ -}}
{{- define "turnpike.settings" -}}
{{- $settings := .Files.Get "base/turnpike.toml" | fromToml }}
{{- $_ := set (index $settings.pools 0).discovery.kubernetes "namespace" .Release.Namespace }}
{{- if not .Values.redis.enabled }}
  {{- $_ := unset $settings.shared "url" }}
{{- end }}
{{- $given := fromToml .Values.settings }}
{{- with $given.Error }}
  {{- fail (printf "settings: this is not TOML: %s" .) }}
{{- end }}
{{- $settings = mergeOverwrite $settings $given }}
{{- if not (dig "shared" "url" "" $settings) }}
  {{- if gt (int .Values.gateway.replicas) 1 }}
    {{- fail "redis.enabled: without it let gateway.replicas be 1, or name a store in settings ([shared] url = …)" }}
  {{- end }}
  {{- $settings = omit $settings "shared" }}
{{- end }}
{{- if not (or .Values.engines.enabled $given.pools) }}
  {{- fail "engines.enabled: without it name the engines in settings ([[pools]])" }}
{{- end }}
{{- toToml $settings }}
{{- end }}
