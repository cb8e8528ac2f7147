//! A thousand faults in the processes of the runtimes: only the call that caused a fault notices it, and nothing
//! accumulates. `tests/it/isolation_faults.rs` has the short form.

use crate::fault_rounds::{disturb, run};

#[test]
fn nobody_else_notices_a_thousand_faults_of_a_model() {
    println!("{}", run(1000));
}

#[test]
fn no_answer_is_wrong_or_lost_whatever_happens_to_the_processes_of_models() {
    for isolation in ["process", "own"] {
        println!("{}", disturb(isolation, 25_000));
    }
}
