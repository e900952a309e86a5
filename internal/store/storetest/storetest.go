// Package storetest is the conformance suite of package store: the same tests on every Redis that Sandfarm runs on.
package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/store"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// Tenant is the tenant of most tests.
const Tenant = "acme"

// Factory returns a client of a running Redis; several tests may share one server, because every test has its own prefix.
type Factory func(t *testing.T) redis.UniversalClient

// Run runs the suite.
func Run(t *testing.T, factory Factory) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Factory){
		"AcceptKeepsEverything":           acceptKeepsEverything,
		"FieldsAreStored":                 fieldsAreStored,
		"ArgumentsReachScripts":           argumentsReachScripts,
		"PackagesNameTheirLastJob":        packagesNameTheirLastJob,
		"PackagesAreBounded":              packagesAreBounded,
		"SandboxMemoryIsCounted":          sandboxMemoryIsCounted,
		"AcceptAgainIsTheSame":            acceptAgainIsTheSame,
		"AcceptBySandboxState":            acceptBySandboxState,
		"RefusalSaysWhyASandboxExpired":   refusalSaysWhyASandboxExpired,
		"CloseTwiceIsOneJob":              closeTwiceIsOneJob,
		"StopsAreFew":                     stopsAreFew,
		"StopsHaveTheirKeys":              stopsHaveTheirKeys,
		"WaitingLimit":                    waitingLimit,
		"QueuedLimit":                     queuedLimit,
		"IdempotencyKey":                  idempotencyKey,
		"IdempotencyRace":                 idempotencyRace,
		"IdempotencyKeysEndWithTheirJob":  idempotencyKeysEndWithTheirJob,
		"ForeignIDsFindNothing":           foreignIDsFindNothing,
		"ClaimAndFinish":                  claimAndFinish,
		"RepeatedEndsChangeNothing":       repeatedEndsChangeNothing,
		"ClaimOnlyRunnableJobs":           claimOnlyRunnableJobs,
		"ClaimRequeuedBackground":         claimRequeuedBackground,
		"Takeover":                        takeover,
		"EveryWriteIsFenced":              everyWriteIsFenced,
		"JobTransitions":                  jobTransitions,
		"SandboxTransitions":              sandboxTransitions,
		"FifoKeepsOrder":                  fifoKeepsOrder,
		"LeaveFIFO":                       leaveFIFO,
		"CancelQueued":                    cancelQueued,
		"CancelQueuedCreate":              cancelQueuedCreate,
		"CancelRunning":                   cancelRunning,
		"EndOfAQueuedJobIsPublished":      endOfAQueuedJobIsPublished,
		"CancelRacesWithClaim":            cancelRacesWithClaim,
		"CanceledCreateEndsSandbox":       canceledCreateEndsSandbox,
		"Checkpoints":                     checkpoints,
		"EventsOnceAndInOrder":            eventsOnceAndInOrder,
		"EndCarriesEvents":                endCarriesEvents,
		"EndCarriesTheRecord":             endCarriesTheRecord,
		"EventsLeaveTheWindow":            eventsLeaveTheWindow,
		"EventsAtTheWindowLimit":          eventsAtTheWindowLimit,
		"EventsAreFenced":                 eventsAreFenced,
		"EventsAreEncodedInParts":         eventsAreEncodedInParts,
		"EventsWithoutTheirSegments":      eventsWithoutTheirSegments,
		"WatchMissesNothing":              watchMissesNothing,
		"WatchOfTheEnd":                   watchOfTheEnd,
		"WatchUnsubscribes":               watchUnsubscribes,
		"JobsPageWhileInserting":          jobsPageWhileInserting,
		"JobsFilter":                      jobsFilter,
		"ListsByTime":                     listsByTime,
		"ListsOfOpenOnesAreTheSame":       listsOfOpenOnesAreTheSame,
		"QueuedCells":                     queuedCells,
		"JobsOfASandbox":                  jobsOfASandbox,
		"PagesAreBounded":                 pagesAreBounded,
		"LabelsAreBounded":                labelsAreBounded,
		"SandboxesFilter":                 sandboxesFilter,
		"BadCursor":                       badCursor,
		"Deadlines":                       deadlines,
		"SandboxesAreRestored":            sandboxesAreRestored,
		"EndedRunFreesItsPlace":           endedRunFreesItsPlace,
		"LaterGenerationIsRestored":       laterGenerationIsRestored,
		"JobMayRepeatItsMove":             jobMayRepeatItsMove,
		"PatchesDoNotUndoEachOther":       patchesDoNotUndoEachOther,
		"PatchOnlyWhileItAccepts":         patchOnlyWhileItAccepts,
		"UnfinishedJobsInOrder":           unfinishedJobsInOrder,
		"RecordsExpire":                   recordsExpire,
		"Artifacts":                       artifacts,
		"ArtifactsOfAJobAreOneManifest":   artifactsOfAJobAreOneManifest,
		"ArtifactPagesAreBoundedInBytes":  artifactPagesAreBoundedInBytes,
		"ALongManifestEndsAPage":          aLongManifestEndsAPage,
		"ArtifactPagesAreStable":          artifactPagesAreStable,
		"StoredIsExact":                   storedIsExact,
		"StorageIsReserved":               storageIsReserved,
		"StorageRace":                     storageRace,
		"EmptyArtifactsAreCharged":        emptyArtifactsAreCharged,
		"ManifestsAreCharged":             manifestsAreCharged,
		"StoredIsRepaired":                storedIsRepaired,
		"StoredIsRepairedWhileItChanges":  storedIsRepairedWhileItChanges,
		"UploadsAreCharged":               uploadsAreCharged,
		"UploadsEndWithTheirJob":          uploadsEndWithTheirJob,
		"CopiesAreCharged":                copiesAreCharged,
		"UploadsRace":                     uploadsRace,
		"KeptIsRepaired":                  keptIsRepaired,
		"StraysAreCharged":                straysAreCharged,
		"ObjectsInUseAreNoOrphans":        objectsInUseAreNoOrphans,
		"DocumentsAreCharged":             documentsAreCharged,
		"RequestsNeedRoom":                requestsNeedRoom,
		"ResultsNeedRoom":                 resultsNeedRoom,
		"EventsNeedRoom":                  eventsNeedRoom,
		"ManifestsLost":                   manifestsLost,
		"Callbacks":                       callbacks,
		"Workers":                         workers,
		"Locks":                           locks,
		"KeysAreCreatedAndDeleted":        keysAreCreatedAndDeleted,
		"KeysAreBounded":                  keysAreBounded,
		"ActivityIsOfTheLastHour":         activityIsOfTheLastHour,
		"FleetEventsAreToldOnce":          fleetEventsAreToldOnce,
		"RecentUseIsBounded":              recentUseIsBounded,
		"FleetEventsAreBounded":           fleetEventsAreBounded,
		"AuditIsListed":                   auditIsListed,
		"AuditIsBounded":                  auditIsBounded,
		"EgressLogIsRead":                 egressLogIsRead,
		"EgressLogIsBounded":              egressLogIsBounded,
		"EgressLogIsBoundedInBytes":       egressLogIsBoundedInBytes,
		"EgressLogIsCounted":              egressLogIsCounted,
		"EgressPagesAreBoundedInBytes":    egressPagesAreBoundedInBytes,
		"EgressLogEndsWithItsSandbox":     egressLogEndsWithItsSandbox,
		"EgressLogIsFenced":               egressLogIsFenced,
		"CheckpointsAreStored":            checkpointsAreStored,
		"HibernatedSandboxesAreNotIdle":   hibernatedSandboxesAreNotIdle,
		"RestoredCheckpointsAreStored":    restoredCheckpointsAreStored,
		"HostsArePatched":                 hostsArePatched,
		"SecretsEndWithTheirSandbox":      secretsEndWithTheirSandbox,
		"SecretsAreReplacedAsTheyWere":    secretsAreReplacedAsTheyWere,
		"HostsOfATenant":                  hostsOfATenant,
		"ExpiredKeysAreTrimmed":           expiredKeysAreTrimmed,
		"OpenRoutes":                      openRoutes,
		"EnqueueIsFenced":                 enqueueIsFenced,
		"DepthLimit":                      depthLimit,
		"ShareOfAQueue":                   shareOfAQueue,
		"InlineJobsKeepTheirSlots":        inlineJobsKeepTheirSlots,
		"EveryKindIsBounded":              everyKindIsBounded,
		"ShareIsRepaired":                 shareIsRepaired,
		"PositionInAQueue":                positionInAQueue,
		"WaitOfAJob":                      waitOfAJob,
		"CapacityIsReservedOnce":          capacityIsReservedOnce,
		"ReservationEdgeCases":            reservationEdgeCases,
		"LargeReservationsGoFirst":        largeReservationsGoFirst,
		"NodesWithoutWorkersAreRemoved":   nodesWithoutWorkersAreRemoved,
		"WorkersWithABrokenRow":           workersWithABrokenRow,
		"SandboxesAreIndexedByNode":       sandboxesAreIndexedByNode,
		"IndexOfNodesIsRepaired":          indexOfNodesIsRepaired,
		"NodeDrains":                      nodeDrains,
		"NodeLeasesLapse":                 nodeLeasesLapse,
		"StoppedFarmEndsNoNode":           stoppedFarmEndsNoNode,
		"PoolClaimsTheOldestMatch":        poolClaimsTheOldestMatch,
		"PoolTakesMembersBack":            poolTakesMembersBack,
		"PoolLeavesTheLastMember":         poolLeavesTheLastMember,
		"PoolClaimsOnce":                  poolClaimsOnce,
		"RequeueElsewhere":                requeueElsewhere,
		"RequeueElsewherePassesItsSlotOn": requeueElsewherePassesItsSlotOn,
		"RequeueElsewhereCanceled":        requeueElsewhereOfACanceledCreate,
		"RequeueBegun":                    requeueOfABegunJob,
		"GPUsAreNeverShared":              gpusAreNeverShared,
		"GPULeases":                       gpuLeases,
		"GPUsAreFenced":                   gpusAreFenced,
		"LargeGPURequestsGoFirst":         largeGPURequestsGoFirst,
		"GPULeasesAreRestored":            gpuLeasesAreRestored,
		"GPULeasesOfTheReleaseBefore":     gpuLeasesOfTheReleaseBefore,
		"ReservationsAreFenced":           reservationsAreFenced,
		"RequeueKeepsTheFIFOPosition":     requeueKeepsTheFIFOPosition,
		"RequeueOfACanceledJob":           requeueOfACanceledJob,
		"IndexesForgetExpiredRecords":     indexesForgetExpiredRecords,
		"FinishedJobsLeaveNoOpenTrace":    finishedJobsLeaveNoOpenTrace,
		"ParkedJobsAreCounted":            parkedJobsAreCounted,
		"WaitingCreatesAreRead":           waitingCreatesAreRead,
		"WaitingDocumentsAreFew":          waitingDocumentsAreFew,
		"OpenSandboxesAreCounted":         openSandboxesAreCounted,
		"ParkedJobsCountFromTheHead":      parkedJobsCountFromTheHead,
		"QuotasBoundSandboxes":            quotasBoundSandboxes,
		"QuotasOfNothing":                 quotasOfNothing,
		"QuotasHoldInARace":               quotasHoldInARace,
		"QuotasOfGPUsAndJobsHold":         quotasOfGPUsAndJobsHoldInARace,
		"RunningJobsAreBounded":           runningJobsAreBounded,
		"CanceledJobsLetOthersRun":        canceledJobsLetOthersRun,
		"DriftIsRepaired":                 driftIsRepaired,
		"RequestRate":                     requestRate,
		"RequestsOfABatch":                requestsOfABatch,
		"RateAfterTheClockWentBack":       requestRateAfterTheClockWentBack,
		"ConnectionsAreLeased":            connectionsAreLeased,
		"UsageIsAddedOnce":                usageIsAddedOnce,
		"StoredBytesAreUsage":             storedBytesAreUsage,
		"JobMemoryIsExact":                jobMemoryIsExact,
		"JobMemoryIsRepaired":             jobMemoryIsRepaired,
		"TrimForgetsExpired":              trimForgetsExpired,
		"TrimBoundsFinishedJobs":          trimBoundsFinishedJobs,
		"TrimLooksBehindOldSandboxes":     trimLooksBehindOldSandboxes,
		"EndedWorkLeavesNoKeys":           endedWorkLeavesNoKeys,
		"LargeRecords":                    largeRecords,
		"ShortRetention":                  shortRetention,
		"LargeSandboxes":                  largeSandboxes,
		"LongRequestsAreStoredOnce":       longRequestsAreStoredOnce,
		"RefusedJobsLeaveNoDocuments":     refusedJobsLeaveNoDocuments,
		"DocumentsAreUnavailable":         documentsAreUnavailable,
		"LostDocuments":                   lostDocuments,
		"LostDocumentOfSandbox":           lostDocumentOfSandbox,
		"UnreadableDocumentOfSandbox":     unreadableDocumentOfSandbox,
		"LargePagesAreShort":              largePagesAreShort,
		"PagesOfManyBytesAreShort":        pagesOfManyBytesAreShort,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, factory)
		})
	}
}

// bundle is one test's store.
type bundle struct {
	*store.Store
	rdb    redis.UniversalClient
	clock  *clock
	prefix string

	documents *Documents
}

func setup(t *testing.T, factory Factory, change ...func(*farm.Limits)) *bundle {
	t.Helper()
	limits := farm.DefaultLimits()
	for _, f := range change {
		f(&limits)
	}
	b := &bundle{rdb: factory(t), clock: newClock(), prefix: farm.NewID("t") + ":", documents: NewDocuments()}
	b.Store = store.New(b.rdb, Tasks, store.Options{Prefix: b.prefix, Limits: limits, Now: b.clock.Now, Documents: b.documents})
	t.Cleanup(func() {
		err := b.Close()
		testbed.Check(t, err == nil, "close store: %v", err)
	})
	return b
}

// accept accepts a job, and fails the test if it is refused.
func (b *bundle) accept(t *testing.T, a store.Accept) store.Accepted {
	t.Helper()
	out, err := b.Accept(t.Context(), a)
	if err != nil {
		t.Fatalf("Accept(%s %s) = %v", a.Job.Kind, a.Job.ID, err)
	}
	return out
}

// box makes a sandbox and moves it to a state by allowed transitions. Its create job is finished, unless
// the state is queued.
func (b *bundle) box(t *testing.T, state farm.SandboxState) farm.Ref {
	t.Helper()
	a := Create()
	b.accept(t, a)
	ref := farm.Ref{Tenant: Tenant, ID: a.Sandbox.ID}
	if state == farm.SandboxQueued {
		return ref
	}
	claim := b.claim(t, a.Job.Ref(), "wrk_setup")
	for _, step := range path(farm.SandboxQueued, state) {
		_, err := b.MoveSandbox(t.Context(), store.Move{Ref: ref, To: step, Node: "n1"})
		testbed.Require(t, err == nil, "MoveSandbox(%s) = %v", step, err)
	}
	b.finish(t, claim.Job, farm.JobCompleted)
	if state == farm.SandboxBusy {
		// The end of the create job makes a busy sandbox ready, as the end of every job of the FIFO does.
		_, err := b.MoveSandbox(t.Context(), store.Move{Ref: ref, To: farm.SandboxBusy})
		testbed.Must(t, err)
	}
	return ref
}

func (b *bundle) claim(t *testing.T, ref farm.Ref, worker string) *store.Claim {
	t.Helper()
	c, err := b.Claim(t.Context(), ref, worker)
	testbed.Require(t, err == nil, "Claim(%s) = %v", ref.ID, err)
	return c
}

func (b *bundle) finish(t *testing.T, job *farm.Job, state farm.JobState) {
	t.Helper()
	if _, err := b.Finish(t.Context(), store.Finish{Ref: job.Ref(), Attempt: job.Attempt, State: state}); err != nil {
		t.Fatalf("Finish(%s, %s) = %v", job.ID, state, err)
	}
}

func (b *bundle) job(t *testing.T, ref farm.Ref) *farm.Job {
	t.Helper()
	job, err := b.Job(t.Context(), ref)
	testbed.Require(t, err == nil, "Job(%s) = %v", ref.ID, err)
	return job
}

func (b *bundle) sandbox(t *testing.T, ref farm.Ref) *farm.Sandbox {
	t.Helper()
	box, err := b.Sandbox(t.Context(), ref)
	testbed.Require(t, err == nil, "Sandbox(%s) = %v", ref.ID, err)
	return box
}

// path finds steps from one state to another in the transition table.
func path(from, to farm.SandboxState) []farm.SandboxState {
	if from == to {
		return nil
	}
	type walk struct {
		at    farm.SandboxState
		steps []farm.SandboxState
	}
	seen := map[farm.SandboxState]bool{from: true}
	for queue := []walk{{at: from}}; len(queue) > 0; queue = queue[1:] {
		for _, next := range farm.SandboxStates() {
			if !queue[0].at.To(next) || seen[next] {
				continue
			}
			seen[next] = true
			steps := append(append([]farm.SandboxState(nil), queue[0].steps...), next)
			if next == to {
				return steps
			}
			queue = append(queue, walk{next, steps})
		}
	}
	panic("no way to " + string(to))
}

// Create is a job that makes a sandbox.
func Create() store.Accept {
	box := &farm.Sandbox{
		ID: farm.NewID(farm.SandboxPrefix), Tenant: Tenant,
		Spec: farm.SandboxSpec{Image: "python", Network: farm.NetworkNone, TTLSeconds: 3600, Labels: map[string]string{"team": "a"}},
	}
	return store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: Tenant, Kind: farm.KindCreate, SandboxID: box.ID, Queue: farm.QueueCPU, TimeoutSeconds: 60},
		Request: &farm.Request{Sandbox: &box.Spec}, Sandbox: box,
	}
}

// Execute is a job that runs code in a sandbox.
func Execute(sandbox string) store.Accept {
	return store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: Tenant, Kind: farm.KindExecute, SandboxID: sandbox, TimeoutSeconds: 30},
		Request: &farm.Request{Execute: &farm.ExecuteRequest{Code: "print(1)", Language: "python", Context: "default"}},
	}
}

// Read is a job that reads a file: inline and hidden.
func Read(sandbox string) store.Accept {
	return store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: Tenant, Kind: farm.KindFile, SandboxID: sandbox, Inline: true, Hidden: true},
		Request: &farm.Request{File: &farm.FileRequest{Op: farm.FileRead, Path: "a.txt"}},
	}
}

// CloseJob is a job that closes a sandbox.
func CloseJob(sandbox string) store.Accept {
	return store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: Tenant, Kind: farm.KindClose, SandboxID: sandbox, Inline: true},
		Request: &farm.Request{Close: &farm.CloseRequest{Reason: "asked for"}},
	}
}

// Stop is a job that interrupts or restarts the kernel of a context.
func Stop(kind farm.JobKind, sandbox, kernel string) store.Accept {
	return store.Accept{
		Job:     &farm.Job{ID: farm.NewID(farm.JobPrefix), Tenant: Tenant, Kind: kind, SandboxID: sandbox, Inline: true},
		Request: &farm.Request{Context: kernel},
	}
}

func wantCode(t *testing.T, what string, err error, code farm.Code) {
	t.Helper()
	testbed.Diff(t, fmt.Sprintf("%s: error %v has code", what, err), code, farm.CodeOf(err))
}

// timeout bounds waits for something that happens at once on a healthy machine.
const timeout = 20 * time.Second
