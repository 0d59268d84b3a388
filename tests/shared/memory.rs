//! The memory that a process has held.

use std::fs;

/// Begins a new peak of a process (`proc(5)`, `clear_refs`).
pub(crate) fn forget_peak(process: u32) {
    fs::write(format!("/proc/{process}/clear_refs"), "5").unwrap();
}

/// The most memory that a process has held so far, in bytes.
pub(crate) fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}
