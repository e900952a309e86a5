package engine

import "testing"

func TestNextUID(t *testing.T) {
	t.Parallel()
	all := map[int]bool{}
	for uid := FirstUID; uid < FirstUID+UIDs; uid++ {
		all[uid] = true
	}
	if uid, err := nextUID(FirstUID, all); err == nil {
		t.Errorf("uid %d although all are used", uid)
	}
	delete(all, FirstUID+7)
	for _, after := range []int{FirstUID, FirstUID + 6, FirstUID + 7, FirstUID + 8, FirstUID + UIDs - 1} {
		if uid, err := nextUID(after, all); err != nil || uid != FirstUID+7 {
			t.Errorf("after %d: %d, %v", after, uid, err)
		}
	}
	last, err := nextUID(FirstUID+UIDs-1, nil)
	if err != nil || last != FirstUID {
		t.Errorf("after the last comes %d, %v", last, err)
	}
}
