//! The catalogue as a part of the daemon: the list that was read last, and one change at a time.

use std::sync::{Arc, Mutex};

use ledge_identity::authentication::Authenticator;
use ledge_models::repository::Repository;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::{PartEnvironment, Subsystem};
use ledge_service::off_thread::blocking;
use tokio::sync::Semaphore;

use super::api::{CatalogueHttpState, ROUTES};
use super::config::CatalogueConfig;
use super::folder;
use super::state::CatalogueState;
use crate::download::DownloadLimits;

/// The catalogue as a part. Clones share one state.
#[derive(Debug, Clone)]
pub struct CataloguePart(Arc<CatalogueState>);

impl CataloguePart {
    /// Creates the catalogue of a box with its models in `repository`.
    pub fn new(
        config: CatalogueConfig,
        limits: DownloadLimits,
        repository: Repository,
        authenticator: Authenticator,
        environment: &PartEnvironment,
    ) -> Self {
        let PartEnvironment { egress, audit, shutdown, .. } = environment;
        Self(Arc::new(CatalogueState {
            config,
            repository,
            audit: audit.clone(),
            shutdown: shutdown.clone(),
            egress: egress.clone(),
            limits,
            authenticator,
            turns: Arc::new(Semaphore::new(1)),
            seen: Mutex::default(),
        }))
    }
}

impl Subsystem for CataloguePart {
    fn name(&self) -> &'static str {
        "catalogue"
    }

    fn routes(&self, context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, &CatalogueHttpState { state: self.0.clone(), context: context.clone() })
    }

    /// Removes the remainders of an earlier process.
    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        let folder = self.0.folder().to_owned();
        environment.shutdown.spawn(blocking(move || folder::remove_interrupted(&folder)));
        Ok(())
    }
}
