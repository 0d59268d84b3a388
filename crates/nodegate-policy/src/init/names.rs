//! Node names, folded into globs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::values::is_address_of_host;

/// More exact names than this are no description of a group, unless globs cover at least as many nodes.
const NAMES_FEW: usize = 20;
/// Maximum number of names and globs of a rule.
const NAMES_MAX: usize = 100;

/// The names of all nodes of a fleet, sorted. Nodes are numbered by their position.
pub(super) struct FleetNames<'a>(pub(super) Vec<&'a str>);

/// A glob `prefix*suffix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Glob<'a> {
    prefix: &'a str,
    suffix: &'a str,
}

impl<'a> Glob<'a> {
    /// The globs that a name may be folded into. The `*` stands for the end of the host name, from a `-` on or from a number
    /// on; a domain is kept. So `gpu-a-07.example.com` may become `gpu-a-*.example.com`, `gpu-*.example.com` or
    /// `*.example.com`, but not `gp*`.
    fn all_of(name: &'a str) -> impl Iterator<Item = Self> {
        let (host, suffix) = name.split_at(name.find('.').unwrap_or(name.len()));
        let bytes = host.as_bytes();
        let begins = move |at: usize| match at.checked_sub(1).map(|before| bytes[before]) {
            None => !suffix.is_empty(),
            Some(b'-') => true,
            Some(before) => bytes[at].is_ascii_digit() && !before.is_ascii_digit(),
        };
        (0..host.len()).filter(move |at| begins(*at)).map(move |at| Self { prefix: &host[..at], suffix })
    }

    fn matches(self, name: &str) -> bool {
        let Self { prefix, suffix } = self;
        name.strip_prefix(prefix).is_some_and(|rest| rest.ends_with(suffix))
    }

    fn len(self) -> usize {
        self.prefix.len() + self.suffix.len()
    }

    fn text(self) -> String {
        format!("{}*{}", self.prefix, self.suffix)
    }
}

/// Names and globs of some nodes, sorted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Folded {
    pub(super) names: Vec<String>,
    /// The number of nodes that a glob matches.
    in_globs: usize,
    /// How many of the exact names are addresses.
    addresses: usize,
    exact: usize,
}

impl Folded {
    /// Whether a node that joins later will hardly have such a name: globs cover less than half of the nodes, and the other
    /// names are many, or are addresses.
    pub(super) fn say_nothing(&self) -> bool {
        self.in_globs < self.exact && (self.exact > NAMES_FEW || self.addresses * 2 > self.exact)
    }

    /// Whether nobody can review such a list.
    pub(super) fn is_unbounded(&self) -> bool {
        (self.in_globs < self.exact && self.exact > NAMES_FEW) || self.names.len() > NAMES_MAX
    }
}

impl FleetNames<'_> {
    /// The globs that a name may be folded into. An address has nothing in common with names of nodes that join later, but the
    /// domain of one may have.
    fn globs_of<'s>(&'s self, name: &'s str) -> impl Iterator<Item = Glob<'s>> {
        let is_address = is_address_of_host(name);
        let is_domain =
            |glob: &Glob<'_>| glob.prefix.is_empty() && self.0.iter().any(|other| !other.ends_with(glob.suffix));
        Glob::all_of(name).filter(move |glob| !is_address || is_domain(glob))
    }

    /// The nodes whose names differ only in their last part or number, by the glob for these names.
    pub(super) fn groups(&self) -> Vec<(String, Vec<usize>)> {
        let mut groups: BTreeMap<Glob<'_>, Vec<usize>> = BTreeMap::new();
        for (node, name) in self.0.iter().enumerate() {
            let glob = Glob::all_of(name).last().filter(|glob| !glob.prefix.is_empty() && !is_address_of_host(name));
            if let Some(glob) = glob {
                groups.entry(glob).or_default().push(node);
            }
        }
        groups.into_iter().map(|(glob, nodes)| (glob.text(), nodes)).collect()
    }

    /// Names and globs that match these nodes and no other node of the fleet, sorted. A glob stands for at least two nodes. Of
    /// globs that match the same nodes, the longest is used, because it matches the fewest nodes that join later.
    pub(super) fn fold(&self, nodes: &[usize]) -> Folded {
        let wanted: BTreeSet<usize> = nodes.iter().copied().collect();
        let mut candidates: BTreeMap<Glob<'_>, Option<Vec<usize>>> = BTreeMap::new();
        for node in nodes {
            for glob in self.globs_of(self.0[*node]) {
                candidates.entry(glob).or_insert_with(|| self.matched_among(glob, &wanted));
            }
        }
        let mut usable: Vec<(Glob<'_>, Vec<usize>)> =
            candidates.into_iter().filter_map(|(glob, matched)| Some((glob, matched?))).collect();
        usable.sort_by_key(|(glob, matched)| (Reverse(matched.len()), Reverse(glob.len())));
        let mut left = wanted;
        let mut folded = Vec::new();
        for (glob, matched) in usable {
            let new = matched.iter().filter(|node| left.contains(node)).count();
            if new >= 2 {
                left.retain(|node| matched.binary_search(node).is_err());
                folded.push(glob.text());
            }
        }
        let exact = left.len();
        let addresses = left.iter().filter(|node| is_address_of_host(self.0[**node])).count();
        folded.extend(left.into_iter().map(|node| self.0[node].to_owned()));
        folded.sort_unstable();
        Folded { names: folded, in_globs: nodes.len() - exact, addresses, exact }
    }

    /// The nodes that a glob matches, unless one of them is not wanted.
    fn matched_among(&self, glob: Glob<'_>, wanted: &BTreeSet<usize>) -> Option<Vec<usize>> {
        let first = self.0.partition_point(|name| *name < glob.prefix);
        let below = self.0[first..].iter().take_while(|name| name.starts_with(glob.prefix)).enumerate();
        let matched = below.filter(|(_, name)| glob.matches(name)).map(|(at, _)| first + at);
        matched.map(|node| wanted.contains(&node).then_some(node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the first names are folded in a fleet that has the second names, too.
    fn folded(names: &[&str], others: &[&str]) -> Vec<String> {
        fold(names, others).names
    }

    fn fold(names: &[&str], others: &[&str]) -> Folded {
        let mut all: Vec<&str> = names.iter().chain(others).copied().collect();
        all.sort_unstable();
        let nodes: Vec<usize> = (0..all.len()).filter(|at| names.contains(&all[*at])).collect();
        FleetNames(all).fold(&nodes)
    }

    #[test]
    fn names_are_folded_where_a_part_or_a_number_begins() {
        assert_eq!(folded(&["gpu-1", "gpu-2", "gpu-10"], &["cpu-1"]), ["gpu-*"]);
        assert_eq!(folded(&["pgmac01", "pgmac02", "thinkpad01"], &["pglenovo01"]), ["pgmac*", "thinkpad01"]);
        assert_eq!(folded(&["alpha", "alpine"], &["beta"]), ["alpha", "alpine"]);
    }

    #[test]
    fn addresses_are_folded_only_into_a_domain_that_is_not_that_of_all() {
        for names in [["10-0-0-1", "10-0-0-2"], ["ip-10-0-0-1.x.internal", "ip-10-0-0-2.x.internal"]] {
            assert_eq!(folded(&names, &[]), names);
        }
        let (east, west) = (["ip-10-0-0-1.east.example", "ip-10-0-0-2.east.example"], ["ip-10-0-0-1.west.example"]);
        assert_eq!(folded(&east, &west), ["*.east.example"]);
        let instances = ["i-0abc12def3456789a.x.internal", "i-0abc12def3456789b.x.internal"];
        assert_eq!(folded(&instances, &[]), instances);
    }

    #[test]
    fn names_say_nothing_if_they_are_addresses_or_many_that_no_glob_covers() {
        let verdict = |names: &[&str], others: &[&str]| {
            let folded = fold(names, others);
            (folded.say_nothing(), folded.is_unbounded())
        };
        let numbered = |of: &str, count: usize| (0..count).map(|at| format!("{of}{at}")).collect::<Vec<_>>();
        fn texts(owned: &[String]) -> Vec<&str> {
            owned.iter().map(String::as_str).collect()
        }
        // Each name is also that of another node, but for its end.
        let (mine, others) = (numbered("n-x", 50), numbered("n-y", 50));
        let scattered = |count: usize| {
            let mut both: Vec<String> =
                (0..count).map(|at| format!("host{}x", ["a", "b"][at % 2].repeat(at / 2 + 1))).collect();
            both.sort_unstable();
            both
        };
        assert_eq!(verdict(&texts(&mine), &texts(&others)), (false, false));
        assert_eq!(verdict(&["alpha", "beta"], &["gamma"]), (false, false));
        assert_eq!(verdict(&texts(&scattered(20)), &[]), (false, false));
        assert_eq!(verdict(&texts(&scattered(21)), &[]), (true, true));
        let addresses: Vec<String> = (0..30).map(|at| format!("ip-10-0-0-{at}.x.internal")).collect();
        assert_eq!(verdict(&texts(&addresses[..3]), &[]), (true, false));
        assert_eq!(verdict(&texts(&addresses), &[]), (true, true));
        // Globs cover at least half: 21 names of 42 nodes.
        let (globbed, exact) = (numbered("gpu-", 21), scattered(21));
        let all = [texts(&globbed), texts(&exact)].concat();
        assert_eq!(verdict(&all, &[]), (false, false));
        assert_eq!(verdict(&all[1..], &[]), (true, true));
        // Too many globs are no list for a person either.
        let pairs: Vec<String> = (0..101).flat_map(|at| [format!("r{at}x-1"), format!("r{at}x-2")]).collect();
        let between: Vec<String> = (0..101).map(|at| format!("r{at}")).collect();
        assert_eq!(verdict(&texts(&pairs), &texts(&between)), (false, true));
    }

    #[test]
    fn the_longest_glob_that_matches_the_same_nodes_is_used() {
        assert_eq!(folded(&["gpu-a100-1", "gpu-a100-2"], &[]), ["gpu-a100-*"]);
        assert_eq!(folded(&["gpu-a100-1", "gpu-a100-2", "gpu-h100-1"], &[]), ["gpu-*"]);
    }

    #[test]
    fn a_glob_matches_no_other_node() {
        assert_eq!(folded(&["node-1", "node-2"], &["node-3"]), ["node-1", "node-2"]);
        assert_eq!(folded(&["gpu-a-1", "gpu-a-2", "gpu-b-1"], &["gpu-b-2"]), ["gpu-a-*", "gpu-b-1"]);
        assert_eq!(folded(&["n1", "n2"], &["nas"]), ["n1", "n2"]);
        assert_eq!(folded(&["gpu-1", "gpu-2"], &["gpu"]), ["gpu-*"]);
    }

    #[test]
    fn the_domain_is_kept() {
        let of = |domain: &str, hosts: &[&str]| hosts.iter().map(|host| format!("{host}.{domain}")).collect::<Vec<_>>();
        let (east, west) = (of("east.example", &["ip-1", "ip-2"]), of("west.example", &["ip-1", "ip-2"]));
        let east: Vec<&str> = east.iter().map(String::as_str).collect();
        let west: Vec<&str> = west.iter().map(String::as_str).collect();
        assert_eq!(folded(&east, &west), ["ip-*.east.example"]);
        assert_eq!(folded(&["a.east.example", "b.east.example"], &west), ["*.east.example"]);
        assert_eq!(folded(&["a-1.x", "a-2.y"], &["b"]), ["a-1.x", "a-2.y"]);
    }
}
