// Errors that concern this service and not its request: its key, account or quota, or how it connects. Providers
// send them with statuses that blame the request as well (400, 404, 412), and every other line would get the same answer.
//
// Codes and types decide first. Words count only where they begin the provider's own message and no parameter is blamed:
// a message that quotes the request begins otherwise, so a caller's text cannot make a server look unusable.
import type { UpstreamError } from './upstream-error.ts'

interface AccessError {
  /** The reason of the error, for callers and operators. */
  reason: string
  /** The advice on the error, for operators alone. */
  advice: string
  /** The codes of the error, in lower case without separators. */
  codes: ReadonlySet<string>
  words: readonly RegExp[]
  /** Whether the server's message may quote the key. */
  quotesKey?: true
}

const NOT_ADMITTED = 'the server does not admit this service'

const ACCESS_ERRORS: readonly AccessError[] = [
  {
    reason: NOT_ADMITTED,
    advice: 'check the API key of the upstream',
    codes: codes(`
      api_key_invalid api_key_expired api_key_service_blocked apikeyinvalid invalid_api_key incorrect_api_key wrong_api_key
      expired_key token_not_found_in_db invalid_token expired_token invalid_authentication invalid_authentication_error
      authentication_error authenticationerror auth_error authenticationtypedisabled unauthenticated unauthorized
      unauthorized_error unrecognizedclientexception invalidsignatureexception expiredtokenexception
      mismatched_organization mismatched_project ip_not_authorized`),
    words: [
      /^(incorrect|invalid|wrong|missing|expired|malformed|no|unknown)( or invalid)? (x-)?api[- ]?(key|token)/i,
      /^(the |your |this )?(x-)?api[- ]?key( you provided)? (is |was |has been |has )?(not valid|invalid|incorrect|wrong|missing|required|expired|revoked|disabled|blocked|not found|deleted|reported as leaked|suspended)\b/i,
      /^(no|missing|invalid|missing or invalid|expired|incorrect) (auth|authorization|authentication|access|bearer|token|credentials|username)\b/i,
      /^(authentication|authorization) (fail(s|ed|ure)?|error|required)\b/i,
      /^unauthorized\b/i,
      /^you (didn't|did not|must) provide an api key/i,
      /^access denied due to (invalid subscription key|virtual network)/i,
      /^the security token included in the request is/i,
    ],
    quotesKey: true,
  },
  {
    reason: NOT_ADMITTED,
    advice: 'check the account behind the API key of the upstream, and what it may do',
    codes: codes(`
      account_deactivated account_suspended account_disabled account_inactive accountoverdueerror invalidaccountstatus
      access_terminated organization_restricted organization_disabled organization_must_be_verified blocked_api_access
      model_permission_blocked_org model_permission_blocked_project model_terms_required precondition_failed
      subscriptionnotregistered subscriptionsuspended resourcedisabled consumer_suspended consumer_invalid
      service_disabled permission_error permission_denied_error forbidden access_denied accessdeniedexception
      accessdenied_unpurchased commoditynotpurchased key_model_access_denied team_model_access_denied
      unsupported_country unsupported_country_region_territory`),
    words: [
      /^(?:(?:this|your|the) )?(organi[sz]ation|account|workspace|project|team|subscription)(?: \S{1,60}){0,3}? (is|was|has been|is currently) (disabled|restricted|suspended|deactivated|not active|inactive|locked|banned|blocked|overdue|terminated|closed|in arrears|not verified)\b/i,
      /^your (organi[sz]ation|account|team|project) must be verified\b/i,
      /^your (newly created teams?|organi[sz]ation|account|team|project|plan) (does not|doesn't|do not|don't|has no|have no)\b/i,
      /^access denied(, please make sure your account| due to overdue account)/i,
      /^(user |your )?(location|country|region)\b.{0,40} (is )?not supported\b/i,
      /^no (endpoints found matching your|allowed providers are available)/i,
      /^the model \S{1,100} requires terms acceptance/i,
    ],
  },
  {
    reason: 'the server has no quota left for this service',
    advice: 'check quota and budget of the account behind the API key of the upstream',
    codes: codes(`
      insufficient_quota insufficient_user_quota insufficient_balance insufficient_credits insufficient_funds
      exceeded_current_quota_error billing_hard_limit_reached billing_not_active billing_disabled billing_error
      budget_exceeded arrearage prepaidbilloverdue postpaidbilloverdue allocationquota_freetieronly balance_too_low
      credit_limit payment_required pre_consume_token_quota_failed quota_exhausted out_of_credits 1113`),
    words: [
      /^(?:sorry, )?(?:your )?(?:account |credit |credits )?(balance|credits?|funds?) (is |are )?(too low|insufficient|not enough|exhausted|expired)/i,
      /^(insufficient|not enough) (account )?(balance|credits?|funds|quota)/i,
      /^(billing hard limit|credit limit|(api )?key limit|(monthly )?spend(ing)? limit|budget|storage (limit|quota)) (has been |was |is )?(reached|exceeded)/i,
      /^(?:you have|you've|your (?:team|organi[sz]ation|account|project)(?: \S{1,60})? has)(?: either)? (reached|exceeded|exhausted|used)\b(?! your current quota)(?: \S{1,60}){0,6} (limits?|credits?|budget|quota)\b/i,
      /^(cloud credits expired|out of call volume quota|inactive subscription or usage limit reached|inactive subscription)\b/i,
      /^(this request requires more credits|more credits are required)\b/i,
      // The words of LiteLLM's router about its own budget.
      /^(no deployments available - )?crossed budget: /i,
    ],
  },
  {
    reason: 'the server does not take requests as they are sent',
    advice:
      'check whether base_url has to begin with https://, and whether the server asks for a client certificate',
    codes: codes('http_to_https'),
    words: [
      /^(400 )?(bad request[:.]? )*(your browser sent a request that this server could not understand\.? ?)?(reason: )?(the plain http request was sent to https port|you're speaking plain http|client sent an http request to an https server|this combination of host and port requires tls|no required ssl certificate was sent|the ssl certificate error|invalid http request received|instead use the https scheme)/i,
    ],
  },
]

/** Codes of unpaid accounts that their provider also sends with a rate limit. */
const ALSO_THROTTLES: ReadonlySet<string> = codes('credit_limit')

/** Words of unpaid accounts that their provider also sends with a rate limit. */
const QUOTA_OR_RATE = /^you exceeded your current quota\b/i

/** The prefix of errors that LiteLLM passes on from another server. */
const PASSED_ON = /^(?:litellm\.\w+: (?:\w+(?:Error|Exception)(?:: | - ))*|\w+Exception - )/

/** Recognises an error about this service's access; null for an error about the request, or an unknown one. */
export function accessError(
  status: number,
  { codes: given, message, param }: Pick<UpstreamError, 'codes' | 'message' | 'param'>,
): AccessError | null {
  const own = message.replace(PASSED_ON, '')
  const isRate = status === 429
  const plain = given.map(plainCode).filter((code) => !isRate || !ALSO_THROTTLES.has(code))
  if (!isRate && QUOTA_OR_RATE.test(own)) plain.push(plainCode('insufficient_quota'))
  const byCode = ACCESS_ERRORS.find((one) => plain.some((code) => one.codes.has(code)))
  if (byCode) return byCode
  // Some errors name the model, or `stream`, because the account may not use it.
  if (param !== null && !/^(model|stream)$/i.test(param)) return null
  return ACCESS_ERRORS.find(({ words }) => words.some((pattern) => pattern.test(own))) ?? null
}

function codes(list: string): Set<string> {
  return new Set(list.trim().split(/\s+/).map(plainCode))
}

function plainCode(code: string): string {
  return code.toLowerCase().replace(/[^a-z0-9]/g, '')
}
