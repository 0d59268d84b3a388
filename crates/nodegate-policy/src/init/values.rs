//! Values that say something of one machine, whoever set them: a rule would give them to the next machine of the name.

use std::collections::BTreeMap;

use super::FleetNode;
use crate::keys::restriction::RECONCILED_LABELS;

/// Fewer nodes than this say nothing about whether a value is different on every node.
const NODES_MIN: usize = 3;
/// A label is left out if it has more values than this, and more than half as many values as nodes. A rule for each node does
/// not describe a fleet.
const VALUES_MAX: usize = 20;
/// Numbers with fewer digits are amounts, ports and years, too.
const ID_DIGITS_MIN: usize = 7;
/// Shorter words of letters and digits are names of products, too.
const RANDOM_MIN: usize = 5;
const HASH_MIN: usize = 8;

/// Words at the end of a key that say what its value is.
const ID_WORDS: [&str; 9] = ["guid", "hash", "id", "mac", "serial", "sha", "uid", "uuid", "vlan"];
const ADDRESS_WORDS: [&str; 6] = ["addr", "address", "ip", "ipv4", "ipv6", "subnet"];
const VERSION_WORDS: [&str; 3] = ["build", "revision", "version"];
const TIME_WORDS: [&str; 3] = ["date", "time", "timestamp"];
/// Before `name`, or joined to it: the name of a machine.
const MACHINE_WORDS: [&str; 6] = ["display", "host", "instance", "machine", "node", "server"];

/// Why a value is no rule, by what it and its key look like.
pub(super) fn looks_like(key: &str, value: &str) -> Option<&'static str> {
    let words = words(key.rsplit('/').next().unwrap_or(key));
    let last = words.last().map_or("", String::as_str);
    // A version in a date comes before a date: 2024.05.1; an address before a version: 10.0.0.7.
    if matches!(value, "" | "true" | "false") {
        None
    } else if ADDRESS_WORDS.contains(&last) || is_address(value) {
        Some("its value looks like an address")
    } else if TIME_WORDS.contains(&last) || is_time(value) {
        Some("its value looks like a time")
    } else if VERSION_WORDS.contains(&last) || has_version(value) {
        Some("its value looks like a version")
    } else if ID_WORDS.contains(&last) || is_id(value) {
        Some("its value looks like an ID")
    } else if names_a_machine(&words) {
        Some("its value looks like the name of a machine")
    } else {
        None
    }
}

/// Whether these words of a key end in `machine-name`, `hostname` or the like.
fn names_a_machine(words: &[String]) -> bool {
    match words {
        [.., of, name] if name == "name" => MACHINE_WORDS.contains(&of.as_str()),
        [.., name] => name.strip_suffix("name").is_some_and(|of| MACHINE_WORDS.contains(&of)),
        [] => false,
    }
}

/// The words of a name, in lower case: `workerID`, `worker-id` and `worker_id` are `worker` and `id`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for letter in name.chars() {
        let begins = !letter.is_ascii_alphanumeric() || (letter.is_ascii_uppercase() && after_lower);
        if begins {
            words.push(String::new());
        }
        if letter.is_ascii_alphanumeric() {
            words.last_mut().into_iter().for_each(|word| word.push(letter.to_ascii_lowercase()));
        }
        after_lower = letter.is_ascii_lowercase() || letter.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `10.0.3.4`, `ip-10-0-3-4.internal`, `0a-1b-2c-3d-4e-5f`, `fd00--1`.
fn is_address(value: &str) -> bool {
    let octet = |part: &str| digits(part) && part.len() <= 3 && part.parse::<u16>().is_ok_and(|number| number <= 255);
    let four = |text: &str, mark: char| text.split(mark).count() == 4 && text.split(mark).all(octet);
    let host = value.split('.').next().unwrap_or(value);
    let ipv4 = four(value, '.') || four(value, '-') || host.strip_prefix("ip-").is_some_and(|rest| four(rest, '-'));
    let parts: Vec<&str> = value.split(['.', '-', '_']).collect();
    let hex = |part: &&str, most: usize| part.len() <= most && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mac = parts.len() == 6 && parts.iter().all(|part| part.len() == 2 && hex(part, 2));
    let ipv6 = (value.contains("--") || parts.len() == 8)
        && parts.len() >= 3
        && !value.contains(['.', '_'])
        && parts.iter().all(|part| hex(part, 4))
        && value.bytes().any(|byte| byte.is_ascii_digit());
    ipv4 || mac || ipv6
}

/// A date of this century or the last one, alone or with a time, and seconds or milliseconds since 1970.
fn is_time(value: &str) -> bool {
    let epoch = digits(value) && matches!(value.len(), 10 | 13) && value.starts_with('1');
    epoch
        || value
            .split_inclusive(['T', 't', '.', '-', '_'])
            .scan(0, |at, part| {
                let begin = *at;
                *at += part.len();
                Some(begin)
            })
            .any(|begin| is_date(&value[begin..]))
}

/// Whether a text begins with `20240131`, `2024-01-31`, `2024.01.31` or `2024_01_31`.
fn is_date(text: &str) -> bool {
    let number = |text: &str, at: usize, len: usize| {
        text.get(at..at + len).filter(|part| digits(part)).and_then(|part| part.parse::<u16>().ok())
    };
    let parts = |month: usize, day: usize| {
        let ends = text.as_bytes().get(day + 2).is_none_or(|next| !next.is_ascii_digit());
        number(text, 0, 4).is_some_and(|year| (1970..2100).contains(&year))
            && number(text, month, 2).is_some_and(|month| (1..=12).contains(&month))
            && number(text, day, 2).is_some_and(|day| (1..=31).contains(&day))
            && ends
    };
    let separated = text.len() >= 10
        && ['-', '.', '_'].iter().any(|mark| text.as_bytes()[4] == *mark as u8 && text.as_bytes()[7] == *mark as u8);
    parts(4, 6) || (separated && parts(5, 8))
}

/// `1.30.2_1543`, `v1.31`, `5.15.0-1051-aws`, `AKSUbuntu-2204gen2-202405.03.0`: three numbers with dots, or two after a `v`.
fn has_version(value: &str) -> bool {
    value.split(['-', '_', '+']).any(|part| {
        let (after_v, number) = part.strip_prefix('v').map_or((false, part), |number| (true, number));
        let numbers = number.split('.').take_while(|part| digits(part)).count();
        numbers >= 3 || (after_v && numbers >= 2)
    })
}

/// A UUID, a hash, a long number, or a word at random such as `i-0abc12def3456789` and `x7k2p` have.
fn is_id(value: &str) -> bool {
    let words = || value.split(['-', '_', '.']);
    let uuid =
        words().map(str::len).eq([8, 4, 4, 4, 12]) && words().flat_map(str::chars).all(|c| c.is_ascii_hexdigit());
    uuid || words().any(|word| {
        let count = |is: fn(&u8) -> bool| word.bytes().filter(is).count();
        let (numbers, letters) = (count(u8::is_ascii_digit), count(u8::is_ascii_alphabetic));
        let changes =
            word.as_bytes().windows(2).filter(|two| two[0].is_ascii_digit() != two[1].is_ascii_digit()).count();
        let hash = word.len() >= HASH_MIN
            && numbers >= 2
            && letters >= 1
            && changes >= 2
            && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let random = word.len() >= RANDOM_MIN && numbers >= 2 && letters >= 2 && changes * 4 >= (word.len() - 1) * 3;
        let long = word.len() > 2 * HASH_MIN && numbers >= 4 && letters >= 4 && changes * 4 >= word.len();
        hash || random || long || (digits(word) && word.len() >= ID_DIGITS_MIN)
    })
}

/// Whether the first part of a node's name is an address, or the ID of an EC2 instance: `ip-10-0-3-4.internal`, `10-0-3-4.x`,
/// `i-0abc12def3456789.internal`. The next machine has another one.
pub(super) fn is_address_of_host(name: &str) -> bool {
    let host = name.split('.').next().unwrap_or(name);
    let instance = host
        .strip_prefix("i-")
        .is_some_and(|id| id.len() >= HASH_MIN && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_address(host) || is_address(name) || instance
}

/// Whether a label with this number of values on this number of nodes puts nodes into groups.
pub(super) fn groups(values: usize, nodes: usize) -> bool {
    values <= VALUES_MAX || values * 2 <= nodes
}

/// A label of the fleet: the nodes that have it, with their values.
struct Spread<'a> {
    fleet: &'a [&'a FleetNode],
    nodes: Vec<(usize, &'a str)>,
}

impl Spread<'_> {
    /// Why the values of a label are no rules.
    fn reason(&self, key: &str) -> Option<String> {
        let looks: Vec<&str> = self.nodes.iter().filter_map(|(_, value)| looks_like(key, value)).collect();
        if let Some(looks) = looks.first().filter(|_| looks.len() * 2 >= self.nodes.len()) {
            return Some((*looks).to_owned());
        }
        let mut values: Vec<&str> = self.nodes.iter().map(|(_, value)| *value).collect();
        values.sort_unstable();
        values.dedup();
        let (values, nodes) = (values.len(), self.nodes.len());
        if values == nodes && nodes >= NODES_MIN && nodes * 2 >= self.fleet.len() {
            return Some(format!("it has a different value on each of {nodes} nodes"));
        }
        if !groups(values, nodes) {
            return Some("it has a different value on most nodes".to_owned());
        }
        let of = |at: usize| self.fleet[at];
        if self.nodes.iter().all(|(at, value)| of(*at).is_named(value)) {
            return Some("its value changes with the machine: it is the node's name or provider ID".to_owned());
        }
        let copied = RECONCILED_LABELS.into_iter().find(|copied| {
            let is_equal =
                |(at, value): &(usize, &str)| of(*at).labels.get(*copied).is_some_and(|other| other == value);
            self.nodes.iter().all(is_equal)
        });
        copied.map(|copied| format!("its value changes with the machine: it is that of {copied}"))
    }
}

impl FleetNode {
    /// Whether a value is the node's name, its host name, or the end of its provider ID.
    fn is_named(&self, value: &str) -> bool {
        let host = self.name.split('.').next().unwrap_or_default();
        let provider_id = self.provider_id.as_deref().and_then(|id| id.rsplit(['/', ':']).next());
        [Some(self.name.as_str()), Some(host), provider_id].contains(&Some(value))
    }
}

/// The labels whose values say something of one machine, with the reason.
pub(super) fn of_machine<'a>(fleet: &[&'a FleetNode]) -> BTreeMap<&'a str, String> {
    let mut spreads: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
    for (at, node) in fleet.iter().enumerate() {
        for (key, value) in &node.labels {
            spreads.entry(key).or_default().push((at, value));
        }
    }
    let reasons = spreads.into_iter().map(|(key, nodes)| (key, Spread { fleet, nodes }.reason(key)));
    reasons.filter_map(|(key, reason)| Some((key, reason?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(key: &str, value: &str) -> &'static str {
        looks_like(key, value).map_or("", |reason| reason.rsplit(' ').next().unwrap_or_default())
    }

    #[test]
    fn values_of_one_machine_are_recognised() {
        for (value, expected) in [
            ("10.0.3.4", "address"),
            ("ip-10-0-3-4.eu-west-1.compute.internal", "address"),
            ("0a-1b-2c-3d-4e-5f", "address"),
            ("fd00--17", "address"),
            ("2024-01-31", "time"),
            ("20240131T101500Z", "time"),
            ("1717430400", "time"),
            ("1.30.2_1543", "version"),
            ("v1.31", "version"),
            ("5.15.0-1051-aws", "version"),
            ("AKSUbuntu-2204gen2containerd-202405.03.0", "version"),
            ("5a2ea5fb-f826-4df1-b405-8b6f8d594098", "ID"),
            ("i-0abc12def3456789", "ID"),
            ("brkkr2of0je3ktpg9lf0-8c99338", "ID"),
            ("2218181", "ID"),
            ("default-x7k2p", "ID"),
        ] {
            assert_eq!(kind("example.com/x", value), expected, "{value}");
        }
        for (key, expected) in [
            ("worker-id", "ID"),
            ("example.com/workerID", "ID"),
            ("privateVLAN", "ID"),
            ("internal-ip", "address"),
            ("node.example.com/image_version", "version"),
            ("installed-date", "time"),
            ("hostname", "machine"),
            ("example.com/machine-name", "machine"),
            ("displayName", "machine"),
        ] {
            assert_eq!(kind(key, "one"), expected, "{key}");
        }
    }

    #[test]
    fn values_that_people_choose_are_not_taken_for_others() {
        for value in [
            "",
            "true",
            "gold",
            "dual-gpu",
            "team-a",
            "a100-sxm4-40gb",
            "nvidia-h100-80gb-hbm3",
            "rtx3090ti",
            "rtx4090",
            "Standard_NC24ads_A100_v4",
            "m5.4xlarge",
            "n1-standard-8",
            "ubuntu-22.04",
            "ubuntu2204",
            "llama-3.1",
            "v2",
            "0.5",
            "1.10",
            "81920",
            "10250",
            "2026",
            "rack-12",
            "r12-u07",
            "eu-west-1a",
            "xeon-e5-2680v4",
            "amd-epyc-7763",
            "deadbeef",
            "decade",
            "2-4-8",
            "high-performance",
            "p4d",
            "c3po",
            "32gb",
        ] {
            assert_eq!(kind("example.com/x", value), "", "{value}");
        }
        for key in ["identity", "valid", "grid", "zip", "versioned", "runtime", "machine", "address-family"] {
            assert_eq!(kind(key, "one"), "", "{key}");
        }
    }
}
