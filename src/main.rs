//! The `nodegate` binary: installs the crypto provider, parses, runs.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Fails only if a provider is installed already, and then that one serves as well.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    nodegate::cli::main(std::env::args_os())
}
