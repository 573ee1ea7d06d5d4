/* The waits with a limit of C++'s standard library, beside a sleeping thread: waits MILLISECONDS
 *
 * Prints for each wait its name, its expected and its measured time in milliseconds. */
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <shared_mutex>
#include <thread>

using namespace std::chrono;
using Milliseconds = duration<double, std::milli>;

template <class Wait> static void takes(const char *name, milliseconds asked, Wait wait)
{
	auto begin = steady_clock::now();
	if (!wait()) {
		printf("%s: it came\n", name);
		exit(1);
	}
	printf("%s %.3f %.3f\n", name, Milliseconds(asked).count(), Milliseconds(steady_clock::now() - begin).count());
}

int main(int, char **argv)
{
	auto limit = milliseconds(atol(argv[1]));
	std::thread([] { for (;;) std::this_thread::sleep_for(hours(200)); }).detach();
	std::mutex mutex;
	std::condition_variable condition;
	std::unique_lock lock(mutex);
	takes("wait_for", limit, [&] { return condition.wait_for(lock, limit) == std::cv_status::timeout; });
	takes("wait_until", limit,
		[&] { return condition.wait_until(lock, system_clock::now() + limit) == std::cv_status::timeout; });
		/* The other thread computes, and has not read a clock before. */
	bool done = false;
	std::thread other([&] {
		for (volatile int i = 0; i < 1000000; i = i + 1)
			;
		std::lock_guard guard(mutex);
		done = true;
		condition.notify_one();
	});
	takes("notified", milliseconds(0), [&] { return condition.wait_for(lock, limit, [&] { return done; }); });
	other.join();
	std::promise<int> promise;
	auto future = promise.get_future();
	takes("future", limit, [&] { return future.wait_for(limit) == std::future_status::timeout; });
	std::timed_mutex timed;
	std::shared_timed_mutex shared;
	std::lock_guard held(timed);
	std::lock_guard too(shared);
	auto elsewhere = [&](auto wait) { return std::async(std::launch::async, wait).get(); };
	takes("try_lock_for", limit, [&] { return elsewhere([&] { return !timed.try_lock_for(limit); }); });
	takes("try_lock_shared_for", limit, [&] { return elsewhere([&] { return !shared.try_lock_shared_for(limit); }); });
	fflush(stdout);
	_Exit(0);
}
