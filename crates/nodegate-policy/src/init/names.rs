//! Node names, folded into globs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

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

impl FleetNames<'_> {
    /// Names and globs that match these nodes and no other node of the fleet, sorted. A glob stands for at least two nodes. Of
    /// globs that match the same nodes, the longest is used, because it matches the fewest nodes that join later.
    pub(super) fn fold(&self, nodes: &[usize]) -> Vec<String> {
        let wanted: BTreeSet<usize> = nodes.iter().copied().collect();
        let mut candidates: BTreeMap<Glob<'_>, Option<Vec<usize>>> = BTreeMap::new();
        for node in nodes {
            for glob in Glob::all_of(self.0[*node]) {
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
        folded.extend(left.into_iter().map(|node| self.0[node].to_owned()));
        folded.sort_unstable();
        folded
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
        assert_eq!(folded(&["10-0-0-1", "10-0-0-2"], &[]), ["10-0-0-*"]);
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
