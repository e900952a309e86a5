//go:build integration

package engine_test

import "testing"

// With the proxy in between, the farm does everything that it does with the engine itself.
func TestThroughTheProxy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"TestInfo": TestInfo, "TestRuntimeThatIsMissing": TestRuntimeThatIsMissing, "TestNodeIDIsAgreedOn": TestNodeIDIsAgreedOn,
		"TestContainerLife": TestContainerLife, "TestRemoveByTwoAtOnce": TestRemoveByTwoAtOnce, "TestEnsureAgent": TestEnsureAgent,
		"TestDialCarriesBytesBothWays": TestDialCarriesBytesBothWays, "TestDialLocalReachesTheContainersOwnSocket": TestDialLocalReachesTheContainersOwnSocket,
		"TestDialTellsWhyTheCommandEnded": TestDialTellsWhyTheCommandEnded, "TestRemoveAllTakesOnlyItsOwn": TestRemoveAllTakesOnlyItsOwn,
		"TestBuildAndImages": TestBuildAndImages, "TestImportThatIsCutShort": TestImportThatIsCutShort,
		"TestLaterGenerationTakesTheName": TestLaterGenerationTakesTheName, "TestGenerationsAtOnce": TestGenerationsAtOnce,
		"TestUpdateChangesTheLimits": TestUpdateChangesTheLimits, "TestNotesOutliveTheWorker": TestNotesOutliveTheWorker,
		"TestSandboxFromInside": TestSandboxFromInside, "TestSandboxStopsForks": TestSandboxStopsForks, "TestSandboxAtItsMemoryLimit": TestSandboxAtItsMemoryLimit,
		"TestSandboxesAreLimitedTogether": TestSandboxesAreLimitedTogether, "TestUserIDsAreUnique": TestUserIDsAreUnique, "TestUsageOfAContainer": TestUsageOfAContainer,
		"TestCheckpointKeepsMemory": TestCheckpointKeepsMemory,
	} {
		t.Run(name, test)
	}
}
