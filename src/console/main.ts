import { h, render } from 'preact'
import { App } from './app.ts'
import { applyPreferences } from './preferences.ts'
import { watchAddress } from './router.ts'
import { readSession } from './session.ts'

const asked = readSession()
await applyPreferences()
watchAddress()
await asked
render(h(App, null), document.getElementById('app') ?? document.body)
