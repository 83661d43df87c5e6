// Knows persons who are signed in by a trusted proxy, such as oauth2-proxy before an OpenID provider. The proxy names
// the person and the groups in headers of each request; nothing is kept between two calls, so a person who leaves a
// group has no access at the next call. Headers count only on connections from the proxy's address.
import { BlockList, isIP } from 'node:net'
import { PROJECT_SCOPES, type Scope } from '../../domain/api-key.ts'
import type { Clock } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import type { Store } from '../../store/store.ts'
import type { Caller } from './caller.ts'
import { callerOfIdentity } from './identity-row.ts'

export interface SignInProxy {
  /** The headers with the person and the groups, in lower case. */
  header: string
  groups_header: string | null
  /** The addresses and networks (CIDR) of the proxy. */
  from: readonly string[]
  /** The groups by name; `*`: every person. The first group of a person counts. */
  groups: ReadonlyMap<string, { project: string; scopes: readonly Scope[] | null }>
  /** The URL for signing out; null: none. */
  sign_out: string | null
}

/** A received request, before any hook has changed its headers. */
interface Received {
  socket: { remoteAddress?: string | undefined }
  headersDistinct: NodeJS.Dict<string[]>
}

interface Person {
  name: string
  groups: readonly string[]
}

const EVERYBODY = '*'
const NAME_CHARACTERS_MAX = 200
/** A name without characters that hide or reorder text, and without separators of lists. */
const NAME = /^[^\p{C}\p{Zl}\p{Zp},;]+$/u

export class ProxyIdentity {
  readonly #rules: SignInProxy
  readonly #trusted = new BlockList()
  readonly #store: Store
  readonly #clock: Clock

  constructor(rules: SignInProxy, store: Store, clock: Clock) {
    this.#rules = rules
    this.#store = store
    this.#clock = clock
    for (const network of rules.from) {
      const [address = '', bits] = network.split('/')
      const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
      if (bits === undefined) this.#trusted.addAddress(address, family)
      else this.#trusted.addSubnet(address, Number(bits), family)
    }
  }

  get signOut(): string | null {
    return this.#rules.sign_out
  }

  /**
   * The person of a request; null where the request is not from the proxy, the proxy names no person or more than one,
   * or a header occurs twice: one of the two may be the browser's.
   */
  personOf({ socket, headersDistinct }: Received): Person | null {
    const address = socket.remoteAddress ?? ''
    const family = isIP(address)
    if (family === 0 || !this.#trusted.check(address, family === 6 ? 'ipv6' : 'ipv4')) return null
    const { header, groups_header } = this.#rules
    const [name = '', ...others] = textsOf(headersDistinct, header)
    if (others.length > 0 || name.length > NAME_CHARACTERS_MAX || !NAME.test(name)) return null
    const [groups = '', ...otherGroups] =
      groups_header === null ? [] : textsOf(headersDistinct, groups_header)
    if (otherGroups.length > 0) return null
    return { name, groups: groups.split(',').map((group) => group.trim()) }
  }

  isMember(person: Person): boolean {
    return this.#groupOf(person) !== undefined
  }

  /** The caller of a person. Throws missing_scope without a group, and invalid_api_key for a revoked person. */
  async authenticate(person: Person): Promise<Caller> {
    const { name } = person
    const group = this.#groupOf(person)
    if (group === undefined)
      throw new ApiError(
        'missing_scope',
        `You are signed in as ${name}, but none of your groups may use this service. Its operator can add one to \`auth.proxy.groups\`.`,
      )
    const identity = { project: group.project, name, issuer: null, scopes: group.scopes ?? PROJECT_SCOPES }
    return { ...(await callerOfIdentity(this.#store, this.#clock, identity)), person: name }
  }

  #groupOf({ groups }: Person) {
    return [...this.#rules.groups].find(([name]) => name === EVERYBODY || groups.includes(name))?.[1]
  }
}

/** The trimmed values of a header; Node decodes the bytes of headers as Latin-1. */
function textsOf(headers: NodeJS.Dict<string[]>, name: string): string[] {
  return (headers[name] ?? []).map((value) => Buffer.from(value, 'latin1').toString().trim())
}
