// What the service says in English, in German. It is loaded where the reader reads German.
import type { WaitingTextKey } from '../../domain/waiting-text.ts'
import { messages } from './texts.ts'

export const texts = messages

/** The German texts of waiting reasons; messages of servers stay as they are. */
export const waiting: Readonly<Record<WaitingTextKey, string>> = {
  paused: 'Er ist angehalten; bis er fortgesetzt wird, wird nichts gesendet.',
  not_before: 'Er beginnt am {until}.',
  storage_failing: 'Der Speicher des Dienstes ist voll oder gestört; bis der Betreiber das behebt, wird nichts gesendet.',
  no_worker: 'Kein Worker läuft; bis einer läuft, wird nichts gesendet.',
  claimed: 'Ein Worker hat ihn übernommen; die erste Zeile wird als Nächstes gesendet.',
  next: 'Ein Worker übernimmt ihn als Nächstes.',
  queued: 'Wartet hinter {chunks} {chunks|Chunk|Chunks} von {batches} {batches|anderen Batch|anderen Batches}, die in Arbeit sind.',
  usage_limit: 'Ein Limit lässt keinen Platz, bis Zeilen, die unterwegs sind, fertig sind.',
  models_paused: 'Seine Modelle sind angehalten; bis sie fortgesetzt werden, wird nichts gesendet.',
  model_paused: 'Das Modell {model} ist angehalten; bis es fortgesetzt wird, wird nichts gesendet.',
  never_open: 'Das Modell {model} hat zu keiner Zeit geöffnet.',
  outside_hours: 'Das Modell {model} ist außerhalb seiner Zeiten; es öffnet am {until}.',
  engine_starting: 'Der Server des Modells {model} ist nicht bereit: {error}',
  unreachable: 'Kein Server des Modells {model} antwortet{because}',
  throttled: 'Die Server des Modells {model} bitten zu warten{because}',
  live_traffic: 'Andere Anfragen lasten den Server des Modells {model} aus; Zeilen werden gesendet, wenn er Platz hat.',
  lines_failing: 'Die Server des Modells {model} schlagen bei Zeilen dieses Batches fehl; der letzte Fehler: {error}',
  others_failing: 'Die Server des Modells {model} schlagen bei Zeilen anderer Batches fehl; dazwischen werden Zeilen von diesem versucht.',
  input_unreadable: 'Seine Eingabe ist nicht lesbar; bis das Zeitfenster endet, wird es wieder versucht.',
  stores_failing: 'Die Datenbank oder der Blob-Speicher antwortete nicht; bald wird es wieder versucht.',
  parked: 'Sein Modell war nicht verfügbar; bald wird es wieder versucht.',
  remote: 'Eine Batch-API hat seine Zeilen; ihre Ergebnisse werden übernommen, wenn sie fertig ist.',
  remote_sending: '{lines} {lines|Zeile wird|Zeilen werden} an {upstream} gesendet.',
  remote_unknown: 'Ob {upstream} {lines} {lines|Zeile|Zeilen} angenommen hat, ist noch unbekannt{because}; bevor sie wieder gesendet {lines|wird|werden}, wird nachgesehen.',
  remote_ended: '{upstream} ist mit {lines} {lines|Zeile|Zeilen} {where} fertig; {lines|das Ergebnis wird|die Ergebnisse werden} als Nächstes übernommen.',
  remote_unreadable: '{upstream} ist mit {lines} {lines|Zeile|Zeilen} {where} fertig, und {lines|das Ergebnis ist|die Ergebnisse sind} nicht lesbar{because}; es wird wieder versucht.',
  remote_lost: '{upstream} hat {lines} {lines|Zeile|Zeilen} {where}, und über sie ist nichts zu erfahren{because}; es wird wieder versucht.',
  remote_cancelling: '{upstream} hat {lines} {lines|Zeile|Zeilen} {where}; dort wird abgebrochen, und was nicht beantwortet ist, beantworten andere Server, oder es endet mit dem Batch.',
  remote_running: '{upstream} hat {lines} {lines|Zeile|Zeilen} {where}{status}; {lines|das Ergebnis wird übernommen, wenn es|die Ergebnisse werden übernommen, wenn sie} fertig {lines|ist|sind}.',
  'part.upstream': 'die Batch-API',
  'part.batches': 'in {remote_batches} Batches',
  'part.batch': 'in einem Batch',
  'part.named': 'im Batch {remote_id}',
}

/** The German advice on failed lines, by error code. */
export const advice: Readonly<Record<string, string>> = {
  invalid_request: 'Korrigieren Sie den Parameter, den `param` nennt, und senden Sie die Zeile noch einmal.',
  model_not_found: 'Wählen Sie ein Modell, das `GET /v1/models` nennt.',
  endpoint_mismatch: 'Legen Sie die Zeile in einen Batch, dessen `endpoint` ihre `url` ist.',
  endpoint_not_supported: 'Wählen Sie ein Modell, das den Endpunkt hat: `GET /v1/models` nennt die `endpoints` von jedem.',
  usage_limit_exceeded: 'Erhöhen Sie das Limit, das `limit_id` nennt, oder warten Sie bis zum Zeitpunkt `resets_at`.',
  internal_error: 'Wiederholen Sie die Zeile nach einer Weile; melden Sie die Request-ID, wenn der Fehler bleibt.',
  context_length_exceeded: 'Kürzen Sie die Nachrichten, oder verringern Sie `max_tokens`; senden Sie die Zeile dann noch einmal.',
  content_filter: 'Ändern Sie den Inhalt, und senden Sie die Zeile dann noch einmal.',
  upstream_rejected: 'Korrigieren Sie `body` der Zeile; die Meldung enthält den Grund, den der Server nannte.',
  upstream_unavailable: 'Wiederholen Sie die Zeile später, oder mit einem anderen Modell.',
  upstream_invalid_response: 'Wiederholen Sie die Zeile später, oder mit einem anderen Modell.',
  upstream_timeout: 'Wiederholen Sie die Zeile, oder verringern Sie `max_tokens`.',
  batch_expired: 'Wiederholen Sie die Zeile in einem neuen Batch; sie wurde nicht berechnet.',
  batch_cancelled: 'Wiederholen Sie die Zeile in einem neuen Batch, wenn Sie sie noch brauchen; sie wurde nicht berechnet.',
  request_cancelled: 'Senden Sie die Anfrage noch einmal, wenn Sie sie noch brauchen; was nicht gesendet war, wurde nicht berechnet.',
  input_file_deleted: 'Laden Sie die Datei noch einmal hoch, und legen Sie einen neuen Batch an; die Zeile wurde nicht berechnet.',
}
