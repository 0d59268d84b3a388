//! `nodegate top` where there is no terminal. In one: `tests/cluster/top.rs`.

use std::process::{Command, Stdio};

#[test]
fn without_a_terminal_it_is_an_error_that_names_the_commands_for_scripts() {
    for input in [Stdio::null(), Stdio::piped()] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        let output = command.args(["top", "--kubeconfig", "absent", "--namespace", "x"]).stdin(input).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{errors}");
        for word in ["needs a terminal", "standard input is not one", "`nodegate report`", "`nodegate history --all"] {
            assert!(errors.contains(word), "{word}: {errors}");
        }
    }
}
