{{- define "offpeak.labels" -}}
app.kubernetes.io/name: offpeak
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "offpeak.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The label of every metric: what autoscaling, alerts and dashboard go by. */}}
{{- define "offpeak.installation" -}}
{{ dig "metrics" "installation" (printf "%s-%s" .Release.Namespace .Release.Name) .Values.config }}
{{- end }}

{{- define "offpeak.config" -}}
{{- $installation := dict "installation" (include "offpeak.installation" .) }}
{{ toYaml (mergeOverwrite (deepCopy .Values.config) (dict "metrics" (mergeOverwrite $installation (dict "port" 9464)))) }}
{{- end }}

{{/* The pod of a role: root, component, args, resources, probe (a port), ready (bool), restart, hook (bool). */}}
{{- define "offpeak.pod" -}}
metadata:
  labels: {{- include "offpeak.labels" . | nindent 4 }}
  annotations:
    checksum/config: {{ include "offpeak.config" .root | sha256sum }}
    {{- if .probe }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "9464"
    prometheus.io/path: /metrics
    {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
  {{- with .restart }}
  restartPolicy: {{ . }}
  {{- end }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000
    runAsGroup: 1000
    fsGroup: 1000
    seccompProfile: {type: RuntimeDefault}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "offpeak.labels" . | nindent 10 }}
  containers:
    - name: {{ .component }}
      image: {{ include "offpeak.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: {{ toJson .args }}
      {{- if .probe }}
      ports:
        {{- if .ready }}
        - {name: http, containerPort: 8080}
        {{- end }}
        - {name: metrics, containerPort: 9464}
      startupProbe:
        httpGet: {path: /healthz, port: {{ .probe }}}
        periodSeconds: 2
        failureThreshold: 45
      livenessProbe:
        httpGet: {path: /healthz, port: {{ .probe }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      {{- if .ready }}
      readinessProbe:
        httpGet: {path: /readyz, port: {{ .probe }}}
        periodSeconds: 5
        failureThreshold: 2
      {{- end }}
      {{- end }}
      envFrom: [{secretRef: {name: {{ .root.Values.existingSecret }}}}]
      env:
        - {name: OFFPEAK_CONFIG, value: /etc/offpeak/offpeak.yaml}
        {{- /* Without them a pod would keep a database and blobs of its own, and lose them with its end. */}}
        {{- range $key := list "database" "blobs" }}
        {{- if not (hasKey $.root.Values.config $key) }}
        - name: OFFPEAK_{{ upper $key }}
          valueFrom: {secretKeyRef: {name: {{ $.root.Values.existingSecret }}, key: OFFPEAK_{{ upper $key }}}}
        {{- end }}
        {{- end }}
        {{- if .root.Values.caBundle.configMap }}
        - {name: NODE_EXTRA_CA_CERTS, value: /etc/offpeak-ca/{{ .root.Values.caBundle.key }}}
        {{- end }}
      securityContext:
        readOnlyRootFilesystem: true
        allowPrivilegeEscalation: false
        capabilities: {drop: [ALL]}
      resources: {{- toYaml .resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/offpeak, readOnly: true}
        - {name: data, mountPath: /data}
        - {name: tmp, mountPath: /tmp}
        {{- if .root.Values.caBundle.configMap }}
        - {name: ca, mountPath: /etc/offpeak-ca, readOnly: true}
        {{- end }}
  volumes:
    - {name: config, configMap: {name: {{ .root.Release.Name }}{{ if .hook }}-migration{{ end }}}}
    - {name: data, emptyDir: {}}
    - {name: tmp, emptyDir: {}}
    {{- with .root.Values.caBundle.configMap }}
    - {name: ca, configMap: {name: {{ . }}}}
    {{- end }}
{{- end }}
