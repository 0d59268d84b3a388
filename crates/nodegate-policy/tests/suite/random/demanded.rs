//! Entries about what a node must be like, drawn from a seed.

use serde_json::{Value, json};

use super::generator::{COMMON, EFFECTS, KEYS, Random, VALUES, conditions, subjects};

/// `of` of an entry, or nothing.
fn fields(random: &mut Random, entry: &mut Value) {
    if random.chance(50) {
        entry["of"] = json!([random.of(&["labels", "taints"]), "annotations"]);
    }
}

/// None has an answer after the write and none before it: then nodegate denies alone.
const EXPRESSIONS: [&str; 10] = [
    r#"object.metadata.?labels[?"a"].orValue("") != "gold""#,
    r#"!("pool" in object.metadata.labels) || object.metadata.labels["pool"] != "1""#,
    r#"oldObject == null || object.metadata.labels["a"] == oldObject.metadata.labels["a"]"#,
    r#"oldObject != null && oldObject.metadata.labels.all(k, k in object.metadata.labels)"#,
    r#"object.spec.taints.all(t, t.key != "dedicated" || request.userInfo.username == "alice")"#,
    r#"object.metadata.?annotations[?"a"].orValue("") != "true""#,
    "size(object.metadata.labels) <= size(oldObject.metadata.labels) // on UPDATE",
    r#"request.subResource == "" || !("hardware.tier" in object.metadata.labels)"#,
    r#"!("team-a" in request.userInfo.groups) || object.metadata.labels.all(k, object.metadata.labels[k] != "")"#,
    r#"has(object.metadata.labels) && object.?spec.?taints.orValue([]).size() < 3 && object.status.capacity["cpu"] != "1500m""#,
];

/// Entries about what a node must be like, by kind.
pub(crate) fn demands(random: &mut Random, prefix: &str, demanding: bool) -> Value {
    let mut governance = json!({});
    for kind in ["immutable", "required", "allowed", "naming", "dependencies", "expressions"] {
        if random.chance(if demanding { 40 } else { 70 }) {
            continue;
        }
        let mut entry = json!({"name": format!("{kind}-entry"), "mode": random.of(&["enforce", "warn", "warn"])});
        if kind != "dependencies" && kind != "expressions" {
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
                    json!([random.of(&KEYS), random.of(&COMMON), random.of(&["dedicated", "example.com/*"])]);
            }
            "required" => entry["keys"] = json!([random.of(&["a", "b", "pool"])]),
            "naming" => naming(random, &mut entry),
            "dependencies" => dependency(random, &mut entry),
            "expressions" => {
                entry["expression"] = json!(random.of(&EXPRESSIONS));
                if random.chance(50) {
                    entry["messageExpression"] = json!(
                        r#"request.operation + " of " + object.metadata.name + (has(object.metadata.labels) ? "" : "!")"#
                    );
                }
            }
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
