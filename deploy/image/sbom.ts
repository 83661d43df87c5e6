// sbom.ts NPM.cdx.json ROOT: prints the bill of materials of an image. To what npm knows of our packages it adds Node and
// the packages of Debian in the image whose root file system is ROOT.
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

interface Component {
  type: string
  name: string
  version: string
  purl: string
  'bom-ref': string
}

const [npmFile = '', root = ''] = process.argv.slice(2)
const bom: { components: Component[] } = JSON.parse(readFileSync(npmFile, 'utf8'))
const release = Object.fromEntries(
  readFileSync(join(root, 'etc/os-release'), 'utf8')
    .split('\n')
    .map((row) => [row.split('=')[0], row.slice(row.indexOf('=') + 1).replaceAll('"', '')]),
)
const node = execFileSync('chroot', [root, 'node', '--version'], { encoding: 'utf8' }).trim().slice(1)
bom.components.push(component('application', 'node', node, `pkg:generic/node@${node}`))
bom.components.push(...debianPackages())
process.stdout.write(`${JSON.stringify(bom, null, 2)}\n`)

function debianPackages(): Component[] {
  const folder = join(root, 'var/lib/dpkg')
  if (!existsSync(join(folder, 'status'))) return []
  // biome-ignore lint/suspicious/noTemplateCurlyInString: dpkg's own template.
  const format = '${Package} ${Version} ${Architecture}\n'
  const rows = execFileSync('dpkg-query', [`--admindir=${folder}`, '--show', `--showformat=${format}`], {
    encoding: 'utf8',
  })
  return rows
    .trim()
    .split('\n')
    .map((row) => {
      const [name = '', version = '', arch = ''] = row.split(' ')
      const distro = `${release.ID}-${release.VERSION_ID}`
      const purl = `pkg:deb/${release.ID}/${encodeURIComponent(name)}@${encodeURIComponent(version)}?arch=${arch}&distro=${distro}`
      return component('library', name, version, purl)
    })
}

function component(type: string, name: string, version: string, purl: string): Component {
  return { type, name, version, purl, 'bom-ref': purl }
}
