//! The budgets that are spent: calls that they cover are refused until their month ends.
//!
//! The part that keeps accounts sets them. While none is spent, a call reads one pointer.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;

use super::admission::AdmissionError;

/// A budget that is spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpentBudget {
    /// The name of the budget.
    pub name: Arc<str>,
    /// The caller that it covers; `None` is all.
    pub principal: Option<Principal>,
    /// The model that it covers; `None` is all.
    pub model: Option<ModelName>,
    /// The end of its month, in milliseconds since the Unix epoch.
    pub until_ms: u64,
}

/// All budgets that are spent.
#[derive(Debug, Default)]
pub struct SpentBudgets(ArcSwapOption<Vec<SpentBudget>>);

impl SpentBudgets {
    /// Replaces them.
    pub fn set(&self, spent: Vec<SpentBudget>) {
        self.0.store((!spent.is_empty()).then(|| Arc::new(spent)));
    }

    /// Refuses a call that a spent budget covers. The daemon itself is never refused.
    pub(super) fn check(&self, principal: &Principal, model: &ModelName) -> Result<(), AdmissionError> {
        let spent = self.0.load();
        let Some(spent) = spent.as_ref().filter(|_| *principal != Principal::Local) else { return Ok(()) };
        check_at(spent, principal, model, clock::FLOOR.now_millis())
    }
}

fn check_at(
    spent: &[SpentBudget],
    principal: &Principal,
    model: &ModelName,
    now_ms: u64,
) -> Result<(), AdmissionError> {
    let covers = |budget: &&SpentBudget| {
        budget.until_ms > now_ms
            && budget.principal.as_ref().is_none_or(|covered| covered == principal)
            && budget.model.as_ref().is_none_or(|covered| covered == model)
    };
    spent.iter().find(covers).map_or(Ok(()), |budget| {
        let begins_in = Duration::from_millis(budget.until_ms - now_ms);
        Err(AdmissionError::Budget { budget: budget.name.clone(), begins_in })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_budget_refuses_its_caller_and_model_until_its_month_ends() {
        let (till, other) = (Principal::Key("till".into()), Principal::Key("other".into()));
        let (wine, text) = (ModelName::constant("wine"), ModelName::constant("text"));
        let budget = |principal: Option<&Principal>, model: Option<&ModelName>| SpentBudget {
            name: "shop".into(),
            principal: principal.cloned(),
            model: model.cloned(),
            until_ms: 10_000,
        };
        let is_refused = |budget: &SpentBudget, principal, model| {
            check_at(std::slice::from_ref(budget), principal, model, 4_000).is_err()
        };
        let of_till = budget(Some(&till), None);
        assert!(is_refused(&of_till, &till, &wine) && !is_refused(&of_till, &other, &wine));
        let of_both = budget(Some(&till), Some(&wine));
        assert!(is_refused(&of_both, &till, &wine) && !is_refused(&of_both, &till, &text));
        assert!(is_refused(&budget(None, None), &other, &text));
        let refused = check_at(&[budget(None, Some(&wine))], &till, &wine, 4_000).unwrap_err();
        assert_eq!(refused.retry_after(), Duration::from_secs(6));
        assert_eq!(refused.to_string(), "the budget 'shop' of this month is spent ([[budget]]); it begins anew in 6 s");
        assert_eq!(check_at(&[budget(None, None)], &till, &wine, 10_000), Ok(()));
    }

    #[test]
    fn a_caller_is_told_to_come_back_within_a_day_and_the_box_itself_is_never_refused() {
        let (budgets, wine) = (SpentBudgets::default(), ModelName::constant("wine"));
        let check = |principal: &Principal| budgets.check(principal, &wine);
        assert_eq!(check(&Principal::Others), Ok(()));
        budgets.set(vec![SpentBudget { name: "all".into(), principal: None, model: None, until_ms: u64::MAX }]);
        assert_eq!(check(&Principal::Others).unwrap_err().retry_after(), Duration::from_hours(24));
        assert_eq!(check(&Principal::Local), Ok(()));
        budgets.set(Vec::new());
        assert_eq!(check(&Principal::Others), Ok(()));
    }
}
