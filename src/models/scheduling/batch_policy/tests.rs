use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_policy_splits_any_number_of_rows_into_sizes_that_were_warmed_up(limit in 1_usize..200, waiting in 1_usize..500) {
        let policy = BatchPolicy::powers_of_two(limit, Duration::ZERO);
        let mut left = waiting;
        let mut runs = 0;
        while left > 0 {
            let taken = policy.preferred.iter().copied().filter(|&size| size <= left).max().unwrap();
            prop_assert!(taken <= limit && policy.is_preferred(taken));
            left -= taken;
            runs += 1;
        }
        prop_assert!(runs <= waiting / policy.worth_waiting_for() + 8);
    }
}
