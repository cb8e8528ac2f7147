//! The `ledge` command.
fn main() {}
