{{- define "slipstream.name" -}}
{{- printf "%s-%s" .release .name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "slipstream.labels" -}}
app.kubernetes.io/name: slipstream
app.kubernetes.io/instance: {{ .release }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{/* The configuration of a group's nodes: the operator's keys, and above them what the chart itself decides. Clients call
the nodes by the name of their Service, and one of them by its pod's name; the nodes take only names that they know.
`replicas` says of how many pods the names stand there. */}}
{{- define "slipstream.config" -}}
{{- $service := include "slipstream.name" . -}}
{{- $hosts := list $service (printf "%s-pods" $service) -}}
{{- range $index := until (int .replicas) -}}
{{- $hosts = append $hosts (printf "%s-%d.%s-pods" $service $index $service) -}}
{{- end -}}
{{- $names := list -}}
{{- range $host := $hosts -}}
{{- $inside := printf "%s.%s" $host $.namespace -}}
{{- $names = concat $names (list $host $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside)) -}}
{{- end -}}
{{- $fixed := dict
  "role" .group.role
  "data_dir" "/data/data"
  "key_file" "/run/slipstream/node.key"
  "network" (dict "listen" "0.0.0.0:7400")
  "api" (dict "listen" "0.0.0.0:8545" "allowed_hosts" (concat $names (dig "api" "allowed_hosts" list .group.config)))
  "log" (dict "format" "json")
-}}
{{- if .hasGenesis }}{{ $_ := set $fixed "genesis" "/genesis/genesis.json" }}{{ end -}}
{{- toYaml (mergeOverwrite (deepCopy .group.config) $fixed) -}}
{{- end -}}
