// The IDs in paths. Any text is accepted: text that is no ID is not found.
import { Type } from 'typebox'

export const FileParams = Type.Object({ file_id: Type.String() })
export const UploadParams = Type.Object({ upload_id: Type.String() })
export const BatchParams = Type.Object({ batch_id: Type.String() })
export const RequestParams = Type.Object({ request_id: Type.String() })
export const EventParams = Type.Object({ event_id: Type.String() })
export const KeyParams = Type.Object({ key_id: Type.String() })
export const ProjectParams = Type.Object({ project_id: Type.String() })
export const LimitParams = Type.Object({ limit_id: Type.String() })
export const WebhookParams = Type.Object({ webhook_id: Type.String() })
