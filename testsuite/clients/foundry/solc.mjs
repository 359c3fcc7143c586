#!/usr/bin/env node
// The compiler of npm as forge calls one: `--version`, or a JSON of sources and settings that goes in and comes out.
import { readFileSync } from "node:fs";
import solc from "solc";

console.log(process.argv.includes("--version") ? `Version: ${solc.version()}` : solc.compile(readFileSync(0, "utf8")));
