//! Entries about what a node must be like, drawn from a seed.

use serde_json::{Value, json};

use super::generator::{COMMON, EFFECTS, KEYS, Random, VALUES, conditions, subjects};

/// `of` of an entry, or nothing.
fn fields(random: &mut Random, entry: &mut Value) {
    if random.chance(50) {
        entry["of"] = json!([random.of(&["labels", "taints"]), "annotations"]);
    }
}

/// Entries about what a node must be like, by kind.
pub(super) fn demands(random: &mut Random, prefix: &str, demanding: bool) -> Value {
    let mut governance = json!({});
    for kind in ["immutable", "required", "allowed", "naming", "dependencies"] {
        if random.chance(if demanding { 40 } else { 70 }) {
            continue;
        }
        let mut entry = json!({"name": format!("{kind}-entry"), "mode": random.of(&["enforce", "warn", "warn"])});
        if kind != "dependencies" {
            fields(random, &mut entry);
        }
        if random.chance(30) {
            entry["except"] = subjects(random);
        }
        if random.chance(30) {
            let named = random.of(&["n1", "gpu-*", "yee?yai"]);
            entry["match"] = match random.chance(50) {
                true => conditions(random, prefix, false),
                false => json!({"names": [format!("{prefix}{named}")]}),
            };
        }
        if random.chance(25) {
            entry["operations"] = json!([random.of(&["add", "change", "remove"]), random.of(&["add", "change"])]);
        }
        match kind {
            "immutable" => {
                entry["keys"] =
                    json!([random.of(&KEYS), random.of(&COMMON), random.of(&["dedicated", "example.com/*"])])
            }
            "required" => entry["keys"] = json!([random.of(&["a", "b", "pool"])]),
            "naming" => naming(random, &mut entry),
            "dependencies" => dependency(random, &mut entry),
            _ => {
                entry["key"] = json!(random.of(&["a", "sub.example.com/y", "pool", "dedicated", "example.com/x"]));
                match random.below(4) {
                    0 => entry["values"] = json!([random.of(&VALUES), random.of(&VALUES)]),
                    1 => entry["pattern"] = json!(random.of(&["tru?e", "[a-z]+", "1|gold"])),
                    _ => entry["range"] = range(random),
                }
            }
        }
        governance[kind] = json!([entry]);
    }
    governance
}

fn range(random: &mut Random) -> Value {
    match random.below(4) {
        0 => json!({"min": 10}),
        1 => json!({"max": 3}),
        2 => json!({"min": i64::MIN, "max": 6}),
        _ => json!({"min": 2 + random.below(4), "max": 9}),
    }
}

/// How keys and values are written, which those that are sent often violate.
fn naming(random: &mut Random, entry: &mut Value) {
    entry["keys"] = json!([random.of(&["*", "example.com/*", "a"]), random.of(&["*", "pool", "Odd_Key"])]);
    entry["in"] = json!([random.of(&["labels", "labels", "taints"]), "annotations"]);
    entry["of"] = json!(random.of(&["key", "value", "both"]));
    let which = random.below(7);
    if which < 4 {
        entry["pattern"] = json!(random.of(&["kebab-case", "lower-case", "namespaced"]));
    }
    if which == 3 || which == 4 {
        entry["regex"] = json!(random.of(&["[a-z./-]*", "[A-Za-z_]+|true", "(?:tru?e|[a-z.]+/?)*"]));
    }
    if which > 4 || which == 1 {
        entry["maxLength"] = json!(2 + random.below(8));
    }
}

/// What labels need, or do not go together with.
fn dependency(random: &mut Random, entry: &mut Value) {
    let any = |random: &mut Random| if random.chance(60) { "*" } else { random.of(&VALUES) };
    let mut when = json!({random.of(&COMMON): any(random)});
    if random.chance(30) {
        when[random.of(&COMMON)] = json!(any(random));
    }
    entry["when"] = when;
    let which = random.below(6);
    if which < 3 {
        entry["require"] = json!({random.of(&COMMON): any(random), "b": any(random)});
    }
    if which == 2 || which == 3 {
        let taint = match random.below(3) {
            0 => "dedicated".to_owned(),
            1 => format!("a:{}", random.of(&EFFECTS)),
            _ => format!("pool={}:{}", random.of(&VALUES), random.of(&EFFECTS)),
        };
        entry["requireTaints"] = json!([taint]);
    }
    if which > 3 {
        entry["forbid"] = json!([random.of(&["a", "pool", "example.com/x"]), "hardware.tier"]);
    }
}
