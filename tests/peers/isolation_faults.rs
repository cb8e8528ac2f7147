//! A thousand faults in the processes of the runtimes: nobody but the call that caused one notices, and nothing piles up.
//! `tests/it/isolation_faults.rs` has the short form.

use crate::fault_rounds::run;

#[test]
fn nobody_else_notices_a_thousand_faults_of_a_model() {
    println!("{}", run(1000));
}
