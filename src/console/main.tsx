// Starts the console in the page that the service serves.
import { render } from 'preact'
import { App } from './app.tsx'
import { showHiddenCharacters } from './parts/text.tsx'
import { applyPreferences } from './preferences.ts'
import { watchAddress } from './router.ts'
import { readSession } from './session.ts'

showHiddenCharacters()
const asked = readSession()
await applyPreferences()
watchAddress()
await asked
render(<App />, document.getElementById('app') ?? document.body)
