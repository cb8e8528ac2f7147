//! Accounts and objectives as a part of the daemon: their sections of the configuration, routes, metrics and task.

use std::fmt;

use ledge_base::toml_check::ValueProblem;
use ledge_identity::access::CallerAccess;
use ledge_part::check::Finding;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::section::{ConfigSection, DoctorContext};
use ledge_part::{PartEnvironment, Subsystem};
use prometheus_client::encoding::DescriptorEncoder;

use crate::accounts::Accounts;
use crate::config::{
    AccountsConfig, BUDGETS_MAX, BudgetConfig, BudgetsConfig, OBJECTIVES_MAX, ObjectiveConfig, ObjectivesConfig,
};
use crate::http::ROUTES;
use crate::{doctor, metrics};

impl ConfigSection for AccountsConfig {
    fn problems(&self) -> Vec<ValueProblem> {
        self.own_problems()
    }
}

impl ConfigSection for BudgetsConfig {
    fn problems(&self) -> Vec<ValueProblem> {
        ValueProblem::of_entries(&self.0, "budgets", BUDGETS_MAX, |budget| &budget.name, BudgetConfig::problems)
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::budgets(self, context)
    }
}

impl ConfigSection for ObjectivesConfig {
    fn problems(&self) -> Vec<ValueProblem> {
        ValueProblem::of_entries(&self.0, "objectives", OBJECTIVES_MAX, |it| &it.name, ObjectiveConfig::problems)
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::objectives(self, context)
    }
}

impl Subsystem for Accounts {
    fn name(&self) -> &'static str {
        "accounts"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, self)
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, access: &CallerAccess) -> fmt::Result {
        if access.is_scoped() {
            return Ok(());
        }
        self.with_book(|book| metrics::encode(encoder, book))
    }

    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        environment.shutdown.spawn(self.clone().keep(environment.shutdown.clone()));
        Ok(())
    }
}
