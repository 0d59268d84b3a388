//! The `nodegate` binary: installs the crypto provider and runs the command.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // This fails only if a provider is already installed, which can be used as well.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    nodegate::cli::main(std::env::args_os())
}
