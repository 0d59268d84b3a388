// node check.mjs PACKAGES DASHBOARD: checks a dashboard against the types of the npm package @grafana/schema, which Grafana generates from its schema.
// Prints what does not fit, one fault a line, and then ends with exit code 1. PACKAGES is what `install` prints.
//
// The compiler checks the JSON as an object literal, so a property that the schema does not have is a fault too, at every depth.
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [packages, file] = process.argv.slice(2);
const ts = createRequire(join(packages, 'index.js'))('typescript');
const text = readFileSync(file, 'utf8');
JSON.parse(text);

const program = `
import type { Dashboard as AnyDashboard, Panel, RowPanel } from '@grafana/schema';
import type { FieldConfig as LineConfig, Options as TimeSeriesOptions } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type { Options as StatOptions } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';

// In JSON, a value of an enumeration is its text.
type Json<T> = T extends string ? \`\${T}\` : T extends (infer Item)[] ? Json<Item>[] : T extends object ? { [Key in keyof T]: Json<T[Key]> } : T;
type DeepPartial<T> = T extends object ? { [Key in keyof T]?: DeepPartial<T[Key]> } : T;
interface Query { refId: string; expr: string; legendFormat: string; instant?: boolean; range?: boolean; format?: 'time_series' | 'table' }
type Of<Type extends string, Options, Custom> = Omit<Panel<Options, Custom>, 'type' | 'targets'> &
    { type: Type; id: number; title: string; description: string; targets: Query[]; options: Options };
type Shown = Of<'timeseries', TimeSeriesOptions, DeepPartial<LineConfig>> | Of<'stat', StatOptions, never> | RowPanel;
type Dashboard = Json<Omit<AnyDashboard, 'panels'> & { uid: string; panels: Shown[] }>;

export const dashboard: Dashboard =
${text};
`;
const directory = mkdtempSync(join(tmpdir(), 'dashboard-'));
try {
    symlinkSync(join(packages, 'node_modules'), join(directory, 'node_modules'));
    const source = join(directory, 'dashboard.ts');
    writeFileSync(source, program);
    const first = program.slice(0, program.indexOf('\nexport const')).split('\n').length + 2;
    const options = { strict: true, noEmit: true, skipLibCheck: true, types: [], moduleResolution: ts.ModuleResolutionKind.Bundler, module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 };
    const faults = ts.getPreEmitDiagnostics(ts.createProgram([source], options)).map((fault) => {
        const message = ts.flattenDiagnosticMessageText(fault.messageText, ' ').replace(/\s+/g, ' ').slice(0, 600);
        const line = fault.file ? fault.file.getLineAndCharacterOfPosition(fault.start).line + 2 - first : 0;
        return `line ${line}: ${message}`;
    });
    if (faults.length > 0) {
        console.log(faults.join('\n'));
        process.exitCode = 1;
    }
} finally {
    rmSync(directory, { recursive: true });
}
