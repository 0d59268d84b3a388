//! What a process says of itself.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// The answer of a probe address; empty if there is none.
pub(crate) fn get(address: &str, path: &str) -> String {
    let mut answer = String::new();
    let Ok(mut stream) = TcpStream::connect(address) else { return answer };
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// A line of `/proc/PID/status`, such as `VmRSS:`, in MB; zero if the process has ended.
pub(crate) fn memory_mb(process: u32, line: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let value = status.lines().find_map(|text| text.strip_prefix(line)).unwrap_or_default();
    value.split_whitespace().next().and_then(|kilobytes| kilobytes.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}

/// The CPU time of a process so far, in seconds.
pub(crate) fn cpu_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // utime and stime, fields 14 and 15 of proc_pid_stat(5), in ticks of which Linux has 100 a second.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
